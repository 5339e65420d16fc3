// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/snapshot/hadamard.h"

#include "lib/kernels/hadamard.h"

namespace kv {

uint32_t HadamardSize(bool is_value, uint32_t head_dim) {
  if (head_dim == 0 || head_dim % 64 != 0) return 0;
  return is_value ? 64 : head_dim & (~head_dim + 1);  // the largest power of two in head_dim
}

void UndoHadamard(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  std::span<float> values) {
  const HadamardRotation state = is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
  const uint32_t size = HadamardSize(is_value, tensor.head_dim);
  if (state != HadamardRotation::kYes || size == 0 || !IsBlockQuantised(tensor.dtype)) return;
  KV_ASSERT(tensor.heads_known && values.size() % size == 0);
  Hadamard(values.data(), values.size(), size);
}

}  // namespace kv
