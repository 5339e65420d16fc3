// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Converts K and V to f32, f16 or bf16, rounded to nearest, ties to even. Block types are
// dequantised, and an engine's Hadamard transform is undone. Tensors that already have the type
// stay views of the original. Throws kUsage for other types, and as RequireHadamardKnown.
Snapshot CastSnapshot(Snapshot snapshot, DType dtype, ThreadPool& pool);

// Converts every tensor that is stored with a Hadamard transform to f32 without it, and leaves the
// others as they are, for computing with K or V. Throws what RequireHadamardKnown throws.
Snapshot WithoutHadamard(Snapshot snapshot, ThreadPool& pool);

// Throws kGeometryMissing if it is unknown whether quantised values are stored with a Hadamard
// transform, or how to undo it.
void RequireHadamardKnown(const Snapshot& snapshot);

// Since 2026-04 llama.cpp multiplies the heads of a quantised cache by a Hadamard matrix before
// storing them, which it calls rotation. Returns the size of the pieces that it multiplies: 64 for
// V, the largest 64 * 2^n that divides the head for K, and 0 if heads of this size are never
// transformed.
uint32_t HadamardSize(bool is_value, uint32_t head_dim);

// Returns true if this tensor of the snapshot is stored transformed.
bool IsHadamardTransformed(const Snapshot& snapshot, const KvTensor& tensor, bool is_value);

// Returns a remark, for reports on single tensors, on the meaning of values in a transformed cache;
// empty unless some tensor is or may be transformed.
std::string HadamardRemark(const Snapshot& snapshot);

// Undoes the Hadamard transform of dequantised heads of K or V, one after another in `values`, if
// this tensor of the snapshot is transformed.
void UndoHadamard(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  std::span<float> values);

}  // namespace kv
