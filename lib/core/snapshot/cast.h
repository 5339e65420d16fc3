// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Converts K and V to f32, f16 or bf16, rounded to nearest, ties to even. Block types are
// dequantised, and the Hadamard transform of those that an engine stored so is undone. Tensors that
// have the type already stay views of the original. Throws kUsage for other types, and as
// RequireHadamardKnown.
Snapshot CastSnapshot(Snapshot snapshot, DType dtype, ThreadPool& pool);

// Converts every tensor that is stored with a Hadamard transform to f32 without it, and leaves the
// others as they are. Whoever computes with K or V calls this first. Throws as
// RequireHadamardKnown.
Snapshot WithoutHadamard(Snapshot snapshot, ThreadPool& pool);

// Throws kGeometryMissing if it is not known whether quantised values are stored with a Hadamard
// transform, or how to undo it.
void RequireHadamardKnown(const Snapshot& snapshot);

}  // namespace kv
