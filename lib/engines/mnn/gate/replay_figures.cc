// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/replay_figures.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/engines/mnn/gate/row_figures.h"
#include "lib/engines/mnn/gate/why_nothing.h"

namespace kv::mnn {
namespace {

using namespace gate;

using runtime::Event;
using runtime::EventKind;
using runtime::LayerResult;
using runtime::ReplayResult;

// The layer of which the largest share is still resident.
Where HeaviestLayer(const ReplayResult& row) {
  const LayerResult* worst = nullptr;
  double most = -1;
  for (const LayerResult& layer : row.layers) {
    if (layer.end.full == 0) continue;
    const double share =
        static_cast<double>(layer.end.total()) / static_cast<double>(layer.end.full);
    if (share <= most) continue;
    most = share;
    worst = &layer;
  }
  return worst == nullptr ? Where{} : TokensOf(worst->layer, 0, row.end);
}

std::optional<double> Ratio(uint64_t raw, uint64_t stored) {
  if (stored == 0) return std::nullopt;
  return static_cast<double>(raw) / static_cast<double>(stored);
}

std::optional<double> VerifiedRatio(const runtime::Measured& measured, size_t kind) {
  return Ratio(measured.verified_raw_of[kind], measured.verified_blob_of[kind]);
}

// The ratio of bytes that were decoded and compared, and the layer that compressed worst. A row
// that compressed nothing stands at 1.
void MeasureRatio(const Rows& rows, Measurements& out) {
  const auto compressed = [](const ReplayResult& row) {
    return row.measured.verified_blob_bytes > 0;
  };
  if (std::none_of(rows.begin(), rows.end(),
                   [&](const ReplayedRow& row) { return compressed(row.replay); })) {
    const std::string why = WhyNothingCompressed(rows.front().replay);
    for (const char* name : {"measured_ratio", "layer_ratio.least", "layer_ratio.most"}) {
      out.Missing(name, why);
    }
    return out.Missing("measured_ratio_mean", why);
  }
  const Value ratio = [](const ReplayResult& row) { return row.measured.verified_ratio(); };
  const ReplayResult* worst = &RowWithLeast(rows, ratio).replay;
  out.Set("measured_ratio_mean", MeanOf(rows, ratio));
  if (!compressed(*worst)) {
    out.Missing("layer_ratio.least", WhyNothingCompressed(*worst));
    out.Missing("layer_ratio.most", WhyNothingCompressed(*worst));
    return out.Set(
        "measured_ratio", 1, {},
        fmt::format("prompt of {} tokens: {}", worst->prompt, WhyNothingCompressed(*worst)));
  }
  Where where, best;
  double least = 0, most = 0;
  for (const LayerResult& layer : worst->layers) {
    for (const size_t kind : {0, 1}) {
      const std::optional<double> ratio = VerifiedRatio(layer.measured, kind);
      if (!ratio) continue;
      Where here = TokensOf(layer.layer, 0, worst->end);
      here.kind = kind == 0 ? "K" : "V";
      if (!where.layer || *ratio < least) {
        least = *ratio;
        where = here;
      }
      if (!best.layer || *ratio > most) {
        most = *ratio;
        best = std::move(here);
      }
    }
  }
  out.Set("measured_ratio", worst->measured.verified_ratio(), where,
          fmt::format("worst {:.4g}x here", least));
  out.Set("layer_ratio.least", least, where);
  out.Set("layer_ratio.most", most, best);
}

void MeasureContent(const Rows& rows, Measurements& out) {
  runtime::ContentCheck content;
  for (const ReplayedRow& row : rows) content.Add(row.replay.content);
  out.Set("content.compared_ranges", static_cast<double>(content.ranges));
  if (content.ranges == 0) {
    out.Missing("content.mismatches", "nothing was compared");
    return;
  }
  Where where;
  if (content.first) {
    where = TokensOf(content.first->layer, content.first->position, content.first->position + 1);
    where.kind = content.first->is_value ? "V" : "K";
    where.head = content.first->head;
  }
  out.Set("content.mismatches", static_cast<double>(content.mismatches), where,
          "the first byte that differs from the snapshot");
}

void MeasureResident(const Rows& rows, CaseResult& result) {
  const Value peak = [](const ReplayResult& r) { return static_cast<double>(r.peak_bytes); };
  const ReplayResult& row = RowWithMost(rows, peak).replay;
  if (row.steps.empty()) return;
  Measurements& out = result.measured;
  const auto most =
      std::max_element(row.steps.begin(), row.steps.end(),
                       [](const auto& a, const auto& b) { return a.total() < b.total(); });
  Where where = HeaviestLayer(row);
  where.token_begin = most->token;
  where.token_end = most->token + 1;
  out.Set("resident_bytes.initial", static_cast<double>(row.steps.front().total()));
  out.Set("resident_bytes.peak", static_cast<double>(row.peak_bytes), where,
          fmt::format("raw {}, blobs {}, caches {}, in flight {} bytes", most->raw, most->blobs,
                      most->caches, most->in_flight));
  out.Set("resident_bytes.final", static_cast<double>(row.steps.back().total()),
          HeaviestLayer(row));
  // A point every few tokens is enough to draw; the last one belongs to it.
  constexpr size_t kMostSamples = 512;
  const size_t stride = (row.steps.size() + kMostSamples - 1) / kMostSamples;
  for (size_t i = 0; i < row.steps.size(); i += stride) {
    result.resident_over_time.push_back({row.steps[i].token, row.steps[i].total()});
  }
  if ((row.steps.size() - 1) % stride != 0) {
    result.resident_over_time.push_back({row.steps.back().token, row.steps.back().total()});
  }
}

void MeasureTrue(const Rows& rows, CaseResult& result) {
  Measurements& out = result.measured;
  const Value whole = [](const ReplayResult& row) { return row.whole_model_ratio(); };
  const ReplayResult& least = RowWithLeast(rows, whole).replay;
  out.Set("whole_model_ratio", whole(least), HeaviestLayer(least), WhyNothingEvicted(least));
  MeasureRatio(rows, out);
  const Value lossy = [](const ReplayResult& row) { return row.h2o_metrics.lossy_ratio; };
  const ReplayResult& lossiest = RowWithLeast(rows, lossy).replay;
  out.Set("lossy_worst", lossy(lossiest), LastPlan(lossiest), WhyNothingEvicted(lossiest));
  out.Set("lossy_mean", MeanOf(rows, lossy), LastPlan(lossiest));
  double evictions = 0, failures = 0;
  Where failed;
  for (const ReplayedRow& row : rows) {
    for (const Event& event : row.replay.events) {
      evictions += event.kind == EventKind::kEvict && event.tokens < event.length ? 1 : 0;
    }
    double here = static_cast<double>(row.replay.measured.verify_failures);
    for (const LayerResult& layer : row.replay.layers) {
      here += static_cast<double>(layer.counters.fallback_count);
    }
    if (here > 0 && !failed.known()) failed = FirstEvent(row.replay, EventKind::kFallback);
    failures += here;
  }
  out.Set("evictions", evictions);
  out.Set("runtime_failures", failures, failed);
  MeasureContent(rows, out);
  MeasureAttentionError(rows, out);
  MeasureResident(rows, result);
}

void DescribeRows(const Rows& rows, CaseResult& result) {
  for (const ReplayedRow& row : rows) {
    RowFigures figures;
    figures.prompt_tokens = row.replay.prompt;
    figures.decode_tokens = row.replay.end - row.replay.prompt;
    figures.lossy_ratio = row.replay.h2o_metrics.lossy_ratio;
    figures.lossless_ratio = row.replay.metrics.ratio;
    figures.whole_model_ratio = row.replay.whole_model_ratio();
    figures.measured_ratio =
        Ratio(row.replay.measured.verified_raw_bytes, row.replay.measured.verified_blob_bytes);
    if (row.attention.summary && row.attention.summary->output_error.count > 0) {
      figures.attention_error_mean = row.attention.summary->output_error.mean;
    }
    result.rows.push_back(figures);
  }
  const Value whole = [](const ReplayResult& row) { return row.whole_model_ratio(); };
  const ReplayedRow& worst = RowWithLeast(rows, whole);
  for (const LayerResult& layer : worst.replay.layers) {
    LayerFigures figures;
    figures.layer = layer.layer;
    figures.k_ratio = VerifiedRatio(layer.measured, 0);
    figures.v_ratio = VerifiedRatio(layer.measured, 1);
    for (const eviction::LayerQuality& quality : worst.attention.layers) {
      if (quality.layer == layer.layer && quality.summary.output_error.count > 0) {
        figures.attention_error = quality.summary.output_error.mean;
      }
    }
    result.layers.push_back(figures);
  }
}

}  // namespace

void MeasureRows(const Rows& rows, bool deterministic, CaseResult& result) {
  MeasureEngine(rows, result, result.measured);
  MeasureTimes(rows, deterministic, result, result.measured);
  MeasureTrue(rows, result);
  DescribeRows(rows, result);
}

}  // namespace kv::mnn
