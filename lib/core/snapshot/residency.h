// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Gives pages back to the system behind a reader that walks a tensor in token order, so that a
// mapped snapshot larger than memory needs little of it.

// Drops the rows [begin, begin + count) if rows follow one another in the file. Does nothing for
// tensors whose tokens are spread over every page (transposed V, head-major); DropTensor drops
// those at the end.
void DropTokens(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count);
void DropTensor(const Snapshot& snapshot, const KvTensor& tensor);

}  // namespace kv
