// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/study/gate/metrics.h"

namespace kv::gate {

// What the cases over one snapshot and one trace share.
struct Subject {
  const Snapshot& snapshot;
  const AttentionTrace* trace = nullptr;
  bool deterministic = false;
  ThreadPool& pool;
  Measurements* of_snapshot = nullptr;  // figures that are the same in all cases; may be shared
  const Snapshot* reference = nullptr;  // the cache that the snapshot must equal
  bool damage = false;  // flips a bit of what a replay holds, so that tests see a gate fail
};

}  // namespace kv::gate
