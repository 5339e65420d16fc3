// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/base/parallel.h"
#include "lib/snapshot/snapshot.h"

namespace kv {

// The same cache with K and V as f32, f16 or bf16 (rounded to nearest, ties to even; block types
// are dequantised and, where an engine stored them Hadamard-rotated, turned back). Tensors that have
// the type already stay views of the original. Throws kUsage for other types, kGeometryMissing
// where it is open whether values are rotated.
Snapshot CastSnapshot(Snapshot snapshot, DType dtype, ThreadPool& pool);

}  // namespace kv
