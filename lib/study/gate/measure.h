// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/study/gate/result.h"

namespace kv::gate {

// State that the cases over one snapshot and one trace share.
struct Subject {
  const Snapshot& snapshot;
  const AttentionTrace* trace = nullptr;
  bool deterministic = false;
  ThreadPool& pool;
  Measurements* of_snapshot = nullptr;  // figures that are the same in all cases; may be shared
  const Snapshot* reference = nullptr;  // the cache that the snapshot is compared with
  bool damage = false;  // flips a bit of the cache in a replay, so that tests see a gate fail
};

// Measures a case's cache without a replay: its difference from the reference, and its values that
// are not finite. Sets figures and `result.reference`.
void MeasureCache(const Subject& subject, CaseResult& result);

// Runs a case without a replay: one of mode compare, which must have a reference, or of mode quant,
// whose figures MeasureQuant adds.
CaseResult CompareCase(const CaseSpec& spec, const Subject& subject);

// Sets the figures quant.*: the effect of the case's "quant" types on its cache. Needs queries.
void MeasureQuant(const Subject& subject, CaseResult& result);

}  // namespace kv::gate
