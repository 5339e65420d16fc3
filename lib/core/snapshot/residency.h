// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Gives pages back to the system behind a reader that walks a tensor in token order, so that a
// mapped snapshot larger than memory is processed in little of it.

// The rows [begin, begin + count), where rows follow one another in the file. Does nothing for
// tensors whose tokens are spread over every page (transposed V, head-major), which DropTensor
// covers at the end.
void DropTokens(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count);
void DropTensor(const Snapshot& snapshot, const KvTensor& tensor);

}  // namespace kv
