// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"
#include "lib/core/base/tensor.h"

namespace kv {

// A cache kept as named arrays: which tensors are K and V follows from their names, which axis is
// which from kvtool's metadata, --layout, or the rank with a note (FORMAT.md). Views are kept as
// they are.
Snapshot SnapshotOf(TensorFile file, const OpenOptions& options);

}  // namespace kv
