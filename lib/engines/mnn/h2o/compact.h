// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/h2o/replay.h"

namespace kv::mnn::h2o {

// The snapshot with only the rows that the run holds after all of its plans: views into the source
// where a layer keeps whole tokens, copies where its kv heads keep different ones. Cells record the
// original positions, one group per layer. Rows beyond the trace stay. K keeps the rotation of its
// original position.
Snapshot Compacted(const Snapshot& snapshot, const ReplayRun& run);

// Reads every row of `written` and compares its hash with that of the source row it stands for: the
// check that the engine's own gate lacks. Throws kContentDiffers naming layer, head and tensor.
// Returns the number of (row, head) pairs compared.
uint64_t CheckRows(const Snapshot& source, const ReplayRun& run, const Snapshot& written);

}  // namespace kv::mnn::h2o
