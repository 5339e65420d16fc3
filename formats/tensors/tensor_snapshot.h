// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"
#include "lib/core/base/tensor.h"

namespace kv {

// Makes a snapshot of a cache kept as named arrays: names tell which tensors are K and V; kvtool's
// metadata, --layout, or the rank (with a note) tell which axis is which (FORMAT.md). Views are not
// copied.
Snapshot BuildSnapshot(TensorFile file, const OpenOptions& options);

}  // namespace kv
