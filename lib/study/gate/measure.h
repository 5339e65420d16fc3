// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/study/gate/result.h"

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

// Measures a case's cache as it is, apart from any replay: how it differs from its reference, and
// where it holds values that are no numbers. Sets figures and `result.reference`.
void MeasureCache(const Subject& subject, CaseResult& result);

// Runs a case of mode compare: measures its cache against the reference, which it must have.
CaseResult CompareCase(const CaseSpec& spec, const Subject& subject);

// Sets the figures quant.*: what the types of the case's "quant" would cost its cache. Needs
// queries.
void MeasureQuant(const Subject& subject, CaseResult& result);

// Runs a case of mode quant: nothing but that.
CaseResult QuantCase(const CaseSpec& spec, const Subject& subject);

}  // namespace kv::gate
