// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/engines/mnn/runtime/replay.h"
#include "lib/study/gate/result.h"

namespace kv::gate {

// What the cases over one snapshot and one trace share.
struct Subject {
  const Snapshot& snapshot;
  const AttentionTrace* trace = nullptr;
  bool deterministic = false;
  ThreadPool& pool;
  Measurements* of_snapshot = nullptr;  // figures that no case changes, kept from case to case
  const lossless::RangeCodec* codec = nullptr;  // null: the engine's; tests give one that fails
  const Snapshot* reference = nullptr;          // what the snapshot must equal
  bool damage = false;                          // of what a replay holds, for tests
};

// The engine's parameters of a case: what the gate's scripts set for its mode, then what a trace of
// block scores was recorded with, then the case's own.
lossless::ReplayRequest RequestOf(const CaseSpec& spec, const Subject& subject);

// Replays a case of the runtime suite, one row per prompt length, H2O and the lossless path in the
// engine's order of a call, and measures every figure that a replay can know. No rule is judged.
CaseResult ReplayCase(const CaseSpec& spec, const Subject& subject, Progress* progress = nullptr);

// Whether a rule of the case asks how fast a replay is.
bool AsksForSpeed(const CaseSpec& spec);

}  // namespace kv::gate
