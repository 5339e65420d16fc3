// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// llama.cpp since 2026-04 multiplies heads of a quantised cache by a Hadamard matrix before storing
// them, in pieces of this size: 64 for V, the largest 64 * 2^n that divides the head for K. 0 where
// heads of this size are never rotated.
uint32_t HadamardSize(bool is_value, uint32_t head_dim);

// Whether this tensor of the snapshot is stored rotated.
bool IsHadamardRotated(const Snapshot& snapshot, const KvTensor& tensor, bool is_value);

// What figures of values say of a rotated cache, for reports that look at single tensors: empty
// unless something is rotated or may be.
std::string HadamardRemark(const Snapshot& snapshot);

// Turns dequantised heads of K or V, one after another in `values`, back into what the model
// computed, if the snapshot says that this tensor is rotated.
void UndoHadamard(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  std::span<float> values);

}  // namespace kv
