// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/engines/mnn/gate/row_figures.h"
#include "lib/engines/mnn/gate/why_nothing.h"

namespace kv::mnn {

using namespace gate;

namespace {

// The layer, head and step of the largest error.
Where WorstStep(const ReplayedRow& row) {
  Where where;
  double most = -1;
  for (const eviction::LayerQuality& layer : row.attention.layers) {
    for (size_t step = 0; step < layer.step_output_error.size(); ++step) {
      if (!(layer.step_output_error[step] > most)) continue;
      most = layer.step_output_error[step];
      const uint64_t token = row.replay.prompt + step;
      where = TokensOf(layer.layer, token, token + 1);
      double head_most = -1;
      for (size_t head = 0; head < layer.heads.size(); ++head) {
        if (!(layer.heads[head].output_error.max > head_most)) continue;
        head_most = layer.heads[head].output_error.max;
        where.head = static_cast<uint32_t>(head);
      }
    }
  }
  return where;
}

// The queries of all rows, and those whose error is undefined: a query, key or value is NaN or
// infinite.
struct QueryCounts {
  uint64_t all = 0, undefined = 0;

  std::string Text() const {
    return fmt::format("{} of {} queries have no attention error: NaN or infinite values",
                       undefined, all);
  }
};

// The row with the largest mean error; null if no row has one.
const ReplayedRow* WorstRow(const Rows& rows,
                            const std::optional<AttentionSummary> AttentionCost::*part) {
  const auto error = [&](const ReplayedRow& row) -> const Distribution& {
    return (row.attention.*part)->output_error;
  };
  const ReplayedRow* worst = nullptr;
  for (const ReplayedRow& row : rows) {
    if (error(row).count == 0) continue;
    if (worst == nullptr || error(row).mean > error(*worst).mean) worst = &row;
  }
  return worst;
}

// Over the queries that lost a key: a longer prompt, or a trigger that comes late, adds queries
// that lose nothing and so makes the mean of all look better.
void MeasureEvictingError(const Rows& rows, const QueryCounts& queries, Measurements& out) {
  const ReplayedRow* worst = WorstRow(rows, &AttentionCost::evicting);
  if (worst == nullptr) {
    const std::string why = WhyNothingEvicted(rows.front().replay);
    for (const char* name : {"attention_error.evicting_mean", "attention_error.evicting_p95"}) {
      if (queries.undefined > 0) {
        out.Undefined(name, queries.Text() + "; no other query lost a key");
      } else {
        out.Missing(name, "no query lost a key" + (why.empty() ? "" : ": " + why));
      }
    }
    return;
  }
  const AttentionSummary& evicting = *worst->attention.evicting;
  Where where;
  where.token_begin = worst->replay.prompt;
  where.token_end = worst->replay.end;
  const std::string note =
      fmt::format("{} of {} queries lost a key", evicting.rows, worst->attention.summary->rows);
  out.Set("attention_error.evicting_mean", evicting.output_error.mean, where, note);
  out.Set("attention_error.evicting_p95", evicting.output_error.p95, where, note);
}

}  // namespace

void MeasureAttentionError(const Rows& rows, Measurements& out) {
  constexpr std::string_view kFigures[] = {"attention_error.mean", "attention_error.p95",
                                           "attention_error.worst", "attention_error.evicting_mean",
                                           "attention_error.evicting_p95"};
  QueryCounts queries;
  for (const ReplayedRow& row : rows) {
    if (!row.attention.missing.empty()) {
      for (const std::string_view name : kFigures) out.Missing(name, row.attention.missing);
      return;
    }
    queries.all += row.attention.summary->rows;
    queries.undefined += row.attention.summary->undefined_rows;
  }
  const ReplayedRow* worst = WorstRow(rows, &AttentionCost::summary);
  if (worst == nullptr) {
    for (const std::string_view name : kFigures) out.Undefined(name, queries.Text());
    return;
  }
  const Distribution& error = worst->attention.summary->output_error;
  const eviction::LayerQuality* layer = nullptr;
  for (const eviction::LayerQuality& one : worst->attention.layers) {
    const Distribution& here = one.summary.output_error;
    if (here.count == 0) continue;
    if (layer == nullptr || here.mean > layer->summary.output_error.mean) layer = &one;
  }
  const Where where = TokensOf(layer->layer, worst->replay.prompt, worst->replay.end);
  const std::string note = fmt::format("mean of layer {:.4g}", layer->summary.output_error.mean);
  out.Set("attention_error.mean", error.mean, where, note);
  out.Set("attention_error.p95", error.p95, where, note);
  out.Set("attention_error.worst", error.max, WorstStep(*worst));
  MeasureEvictingError(rows, queries, out);
  if (queries.undefined == 0) return;
  for (const std::string_view name : kFigures) {
    const std::optional<double> least = out.Value(name);
    if (least) out.SetRange(name, {*least, HUGE_VAL, queries.Text()});
  }
}

}  // namespace kv::mnn
