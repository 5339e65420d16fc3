// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/eviction/replay.h"

namespace kv::eviction {

// Returns the snapshot with only the rows that the run holds after all of its plans. A layer whose
// kv heads keep the same tokens consists of views into the source, other layers of copies. Cells
// record the original positions, in one group per layer. Rows beyond the trace stay. K keeps the
// rotation of its original position.
Snapshot Compacted(const Snapshot& snapshot, const ReplayRun& run);

// Reads every row of `written` and compares its hash with that of its source row, a check that the
// engine's own gate lacks. Throws kContentDiffers, naming layer, head and tensor. Returns the
// number of (row, head) pairs compared.
uint64_t CheckRows(const Snapshot& source, const ReplayRun& run, const Snapshot& written);

}  // namespace kv::eviction
