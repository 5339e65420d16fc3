// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

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

// Over the queries that lost a key: a longer prompt, or a trigger that comes late, adds queries
// that lose nothing and so makes the mean of all look better.
void MeasureEvictingError(const Rows& rows, Measurements& out) {
  const ReplayedRow* worst = nullptr;
  for (const ReplayedRow& row : rows) {
    const AttentionSummary& evicting = *row.attention.evicting;
    if (evicting.rows == 0) continue;
    if (worst == nullptr ||
        evicting.output_error.mean > worst->attention.evicting->output_error.mean) {
      worst = &row;
    }
  }
  if (worst == nullptr) {
    const std::string why = WhyNothingEvicted(rows.front().replay);
    for (const char* name : {"attention_error.evicting_mean", "attention_error.evicting_p95"}) {
      out.Missing(name, "no query lost a key" + (why.empty() ? "" : ": " + why));
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
  const ReplayedRow* worst = nullptr;
  for (const ReplayedRow& row : rows) {
    if (!row.attention.missing.empty()) {
      for (const char* name :
           {"attention_error.mean", "attention_error.p95", "attention_error.worst",
            "attention_error.evicting_mean", "attention_error.evicting_p95"}) {
        out.Missing(name, row.attention.missing);
      }
      return;
    }
    if (worst == nullptr ||
        row.attention.summary->output_error.mean > worst->attention.summary->output_error.mean) {
      worst = &row;
    }
  }
  const Distribution& error = worst->attention.summary->output_error;
  const eviction::LayerQuality& layer =
      *std::max_element(worst->attention.layers.begin(), worst->attention.layers.end(),
                        [](const auto& a, const auto& b) {
                          return a.summary.output_error.mean < b.summary.output_error.mean;
                        });
  const Where where = TokensOf(layer.layer, worst->replay.prompt, worst->replay.end);
  const std::string note = fmt::format("mean of layer {:.4g}", layer.summary.output_error.mean);
  out.Set("attention_error.mean", error.mean, where, note);
  out.Set("attention_error.p95", error.p95, where, note);
  out.Set("attention_error.worst", error.max, WorstStep(*worst));
  MeasureEvictingError(rows, out);
}

}  // namespace kv::mnn
