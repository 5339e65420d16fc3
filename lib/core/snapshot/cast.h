// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// The same cache with K and V as f32, f16 or bf16 (rounded to nearest, ties to even; block types
// are dequantised and, where an engine stored them Hadamard-rotated, turned back). Tensors that
// have the type already stay views of the original. Throws kUsage for other types, kGeometryMissing
// where it is open whether values are rotated.
Snapshot CastSnapshot(Snapshot snapshot, DType dtype, ThreadPool& pool);

// The same cache with every tensor that is stored Hadamard-rotated as f32, turned back; all others
// stay as they are. What computes with K or V begins here. Throws as RequireRotationKnown.
Snapshot WithoutHadamard(Snapshot snapshot, ThreadPool& pool);

// Throws kGeometryMissing where it is open whether quantised values are rotated, or how to undo it.
void RequireRotationKnown(const Snapshot& snapshot);

}  // namespace kv
