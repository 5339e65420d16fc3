// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Inside lib/engines/mnn/gate: what the figures of replayed rows are made with.
#pragma once  // implemented by row_figures.cc, engine_figures.cc, attention_figures.cc

#include <functional>
#include <string>
#include <vector>

#include "lib/engines/mnn/gate/replay_figures.h"

namespace kv::mnn {

using Rows = std::vector<ReplayedRow>;
using Value = std::function<double(const runtime::ReplayResult&)>;

const ReplayedRow& RowWithMost(const Rows& rows, const Value& value);
const ReplayedRow& RowWithLeast(const Rows& rows, const Value& value);
double MeanOf(const Rows& rows, const Value& value);

gate::Where TokensOf(uint32_t layer, uint64_t begin, uint64_t end);
// The engine's ratio is that of its last plan: one layer, as long as it was then.
gate::Where LastPlan(const runtime::ReplayResult& row);
gate::Where FirstEvent(const runtime::ReplayResult& row, runtime::EventKind kind);

// In the engine's own terms.
void MeasureEngine(const Rows& rows, const gate::CaseResult& result, gate::Measurements& out);
// Those that only a clock tells.
void MeasureTimes(const Rows& rows, bool deterministic, const gate::CaseResult& result,
                  gate::Measurements& out);
// What eviction does to the attention's output.
void MeasureAttentionError(const Rows& rows, gate::Measurements& out);

}  // namespace kv::mnn
