// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/hadamard.h"

#include "lib/core/kernels/hadamard.h"
#include "lib/core/snapshot/rope.h"

namespace kv {

uint32_t HadamardSize(bool is_value, uint32_t head_dim) {
  if (head_dim == 0 || head_dim % 64 != 0) return 0;
  return is_value ? 64 : head_dim & (~head_dim + 1);  // the largest power of two in head_dim
}

bool IsHadamardTransformed(const Snapshot& snapshot, const KvTensor& tensor, bool is_value) {
  const HadamardState state = is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
  return state == HadamardState::kYes && IsBlockQuantised(tensor.dtype) &&
         HadamardSize(is_value, tensor.head_dim) != 0;
}

std::string HadamardRemark(const Snapshot& snapshot) {
  bool is_turned_back = false, is_as_stored = false;
  const auto look = [&](const KvTensor& tensor, bool is_value) {
    const HadamardState state = is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
    if (!IsBlockQuantised(tensor.dtype) || !TraitsOf(snapshot.engine).may_turn_blocks) return;
    if (IsHadamardTransformed(snapshot, tensor, is_value) && tensor.heads_known) {
      is_turned_back = true;
    } else if (state != HadamardState::kNo) {
      is_as_stored = true;
    }
  };
  for (const LayerKv& layer : snapshot.layers) {
    if (layer.has_k()) look(layer.k, false);
    if (layer.v) look(*layer.v, true);
  }
  if (is_as_stored) {
    return "it is unknown whether the quantised values are Hadamard-rotated: figures describe the "
           "values as stored (--kv-heads or --head-dim, and --rotated yes or no, settle it)";
  }
  if (is_turned_back) {
    return "values are stored Hadamard-rotated: figures of values describe what the model "
           "computed, figures of bytes and codes what is stored";
  }
  return {};
}

void UndoHadamard(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  std::span<float> values) {
  if (!IsHadamardTransformed(snapshot, tensor, is_value)) return;
  const uint32_t size = HadamardSize(is_value, tensor.head_dim);
  KV_ASSERT(tensor.heads_known && values.size() % size == 0);
  Hadamard(values.data(), values.size(), size);
}

}  // namespace kv
