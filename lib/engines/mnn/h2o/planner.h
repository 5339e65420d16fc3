// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/eviction/replay.h"

namespace kv::mnn::h2o {

using eviction::ReplayRequest;
using eviction::ReplayResult;
using eviction::ReplayRun;

// The policies as their papers have them, but at the engine's intervals: down to a ratio of the
// cache as it is then, by the floor rule of the final branch.
extern const eviction::EngineRule kIntervals;
extern const eviction::EngineRule kDesign;  // the published text, with its target of 3.5
extern const eviction::EngineRule kMnn;     // the final branch
extern const eviction::EngineRule kMnnR6;   // the measured build

// Returns the rule that --engine names, or null for "exact" without the engine's intervals.
const eviction::EngineRule* FindEngine(std::string_view name, bool at_intervals);

// Replays as eviction::Replay does, and says under the engine's names why a run evicted nothing.
ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv::mnn::h2o
