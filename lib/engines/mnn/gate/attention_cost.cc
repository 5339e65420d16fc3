// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/attention_cost.h"

#include <algorithm>

#include "lib/core/snapshot/cast.h"

namespace kv::mnn {
namespace {

using namespace gate;

std::string WhyNone(const Subject& subject) {
  if (subject.trace == nullptr) return "no attention trace: give 'trace'";
  if (subject.trace->block_scores) return "a trace of block scores holds no attention rows";
  if (subject.trace->layers.empty()) return "the trace has no attention rows";
  const bool values =
      std::all_of(subject.trace->layers.begin(), subject.trace->layers.end(),
                  [&](const TraceLayer& rows) { return subject.snapshot.Find(rows.layer)->v; });
  return values ? std::string() : "the snapshot has no values";
}

}  // namespace

AttentionCost MeasureAttention(const runtime::ReplayResult& row, const Subject& subject) {
  AttentionCost cost;
  cost.missing = WhyNone(subject);
  if (!cost.missing.empty()) return cost;
  AttentionSamples pooled;
  const Snapshot values = WithoutHadamard(subject.snapshot, subject.pool);
  for (const TraceLayer& rows : subject.trace->layers) {
    const LayerAttention attention(*subject.trace, rows, *values.Find(rows.layer));
    const auto plan =
        std::find_if(row.plans.begin(), row.plans.end(),
                     [&](const eviction::LayerPlan& p) { return p.layer == rows.layer; });
    KV_ASSERT(plan != row.plans.end());
    const eviction::LayerPlan* const plans[] = {&*plan};
    const eviction::MeasuredRows measured = eviction::ChooseRows(
        row.prompt, std::min(attention.end_row(), row.end), 0, 0);  // a verdict rests on all rows
    cost.layers.push_back(
        eviction::MeasureLayer(attention, plans, measured, {&pooled, 1}, subject.pool).front());
  }
  cost.summary = pooled.Summarise();
  cost.evicting = pooled.SummariseEvicting();
  return cost;
}

}  // namespace kv::mnn
