// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The figures of replayed rows: the original's by its definitions, and true ones beside them, each
// with the place where its worst value occurs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/engines/mnn/gate/replay_case.h"

namespace kv::mnn {
namespace {

using namespace gate;

using runtime::Event;
using runtime::EventKind;
using runtime::LayerResult;
using runtime::ReplayResult;

using Rows = std::vector<ReplayedRow>;
using RowValue = std::function<double(const ReplayResult&)>;

// Return why H2O removed nothing, and why the lossless path compressed nothing, naming the
// parameter that prevented it; "" if something was removed or compressed.
std::string WhyNothingEvicted(const ReplayResult& row) {
  if (row.h2o_metrics.total_evict_tokens > 0) return {};
  if (!row.h2o_enabled) return "H2O is off";
  const eviction::LayerRange range =
      eviction::EvictedLayers(row.h2o, static_cast<uint32_t>(row.layers.size()));
  if (range.first > range.last)
    return "nothing was evicted: h2o_layer_start to h2o_layer_end hold no layer";
  if (row.end < static_cast<uint64_t>(row.h2o.trigger_min_tokens)) {
    return fmt::format(
        "nothing was evicted: the cache never reaches h2o_trigger_min_tokens {}, it ends at {}",
        row.h2o.trigger_min_tokens, row.end);
  }
  // Every decision sets this, even one that evicts nothing.
  if (row.h2o_metrics.floor_keep == 0) {
    return fmt::format("nothing was evicted: no trigger in {} decode steps, h2o_update_interval {}",
                       row.end - row.prompt, row.h2o.update_interval);
  }
  return fmt::format(
      "nothing was evicted: sink and recent blocks alone reach a target of {:.4g}x: "
      "h2o_sink_tokens "
      "{}, h2o_recent_tokens {}, h2o_block_tokens {}",
      1 / eviction::TargetKeepShare(row.h2o), row.h2o.sink_tokens, row.h2o.recent_tokens,
      row.h2o.block_tokens);
}

std::string WhyNothingCompressed(const ReplayResult& row) {
  if (row.measured.verified_blob_bytes > 0) return {};
  if (!row.lossless.active()) return "the lossless path is off";
  if (row.measured.encode_calls > 0) return "no range became smaller";
  const runtime::Config& config = row.lossless;
  if (config.scope == runtime::Scope::kNone) {
    return "nothing was compressed: h2o_lossless_scope is none";
  }
  const auto hot = static_cast<uint64_t>(config.hot_sink_tokens + config.hot_recent_tokens);
  if (row.end <= hot || row.end < static_cast<uint64_t>(row.h2o.trigger_min_tokens)) {
    return fmt::format(
        "nothing was compressed: the cache ends at {} tokens, and a cold range begins beyond "
        "h2o_lossless_hot_sink_tokens {} + h2o_lossless_hot_recent_tokens {} from "
        "h2o_trigger_min_tokens {} on",
        row.end, config.hot_sink_tokens, config.hot_recent_tokens, row.h2o.trigger_min_tokens);
  }
  return fmt::format(
      "nothing was compressed: no layer of h2o_lossless_scope {} grew a cold range as long as a "
      "first piece; sink {} and recent {} tokens stay out",
      runtime::Name(config.scope), config.hot_sink_tokens, config.hot_recent_tokens);
}

const Event* Last(const ReplayResult& row, EventKind kind) {
  const auto found = std::find_if(row.events.rbegin(), row.events.rend(),
                                  [&](const Event& event) { return event.kind == kind; });
  return found == row.events.rend() ? nullptr : &*found;
}

const ReplayedRow& RowWithMost(const Rows& rows, const RowValue& value) {
  return *std::max_element(rows.begin(), rows.end(),
                           [&](const ReplayedRow& a, const ReplayedRow& b) {
                             return value(a.replay) < value(b.replay);
                           });
}

const ReplayedRow& RowWithLeast(const Rows& rows, const RowValue& value) {
  return RowWithMost(rows, [&](const ReplayResult& row) { return -value(row); });
}

double MeanFigure(const Rows& rows, const RowValue& value) {
  double sum = 0;
  for (const ReplayedRow& row : rows) sum += value(row.replay);
  return sum / static_cast<double>(rows.size());
}

Where AtTokens(uint32_t layer, uint64_t begin, uint64_t end) {
  Where where;
  where.layer = layer;
  where.token_begin = begin;
  where.token_end = end;
  return where;
}

// Returns the layer and length of the last plan, because the engine's ratio is relative to that
// layer at its length then.
Where LastPlan(const ReplayResult& row) {
  const Event* event = Last(row, EventKind::kEvict);
  return event == nullptr ? Where{} : AtTokens(event->layer, 0, event->length);
}

Where FirstEvent(const ReplayResult& row, EventKind kind) {
  const auto found = std::find_if(row.events.begin(), row.events.end(),
                                  [&](const Event& event) { return event.kind == kind; });
  return found == row.events.end()
             ? Where{}
             : AtTokens(found->layer, found->begin, found->begin + found->tokens);
}

// Returns the layer, head and step of the largest error.
Where WorstStep(const ReplayedRow& row) {
  Where where;
  double most = -1;
  for (const eviction::LayerQuality& layer : row.attention.layers) {
    for (size_t step = 0; step < layer.step_output_error.size(); ++step) {
      if (!(layer.step_output_error[step] > most)) continue;
      most = layer.step_output_error[step];
      const uint64_t token = row.replay.prompt + step;
      where = AtTokens(layer.layer, token, token + 1);
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

// Numbers of queries over all rows, and of those with an undefined error, because a query, key or
// value is NaN or infinite.
struct QueryCounts {
  uint64_t all = 0, undefined = 0;

  std::string Text() const {
    return fmt::format("{} of {} queries have no attention error: NaN or infinite values",
                       undefined, all);
  }
};

// Returns the row with the largest mean error; null if no row has one.
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

// Measures the error over queries that lost a key. A longer prompt or a later trigger adds queries
// that lose nothing, which would improve the mean over all.
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

// Measures the effect of eviction on the attention's output.
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
  const Where where = AtTokens(layer->layer, worst->replay.prompt, worst->replay.end);
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

constexpr char kNeedsEngine[] = "tokens/s of a whole model: only an engine can measure it";
constexpr char kTimeless[] = "a time: --deterministic omits times";

bool LosslessActive(const ReplayResult& row) { return row.lossless.active(); }

// Sets a figure to the largest value of any row.
void SetMost(const Rows& rows, std::string_view name, const RowValue& value, Measurements& out,
             Where (*where)(const ReplayResult&) = nullptr, const std::string& note = {}) {
  const ReplayResult& row = RowWithMost(rows, value).replay;
  out.Set(name, value(row), where == nullptr ? Where{} : where(row), note);
}

void MeasureRatios(const Rows& rows, Measurements& out) {
  const RowValue lossy = [](const ReplayResult& row) { return row.h2o_metrics.lossy_ratio; };
  const RowValue ratio = [](const ReplayResult& row) { return row.metrics.ratio; };
  SetMost(rows, "lossy_best", lossy, out, LastPlan,
          WhyNothingEvicted(RowWithMost(rows, lossy).replay));
  out.Set("candidate_lossy_ratio_avg", MeanFigure(rows, lossy));
  out.Set("candidate_lossless_ratio_avg", MeanFigure(rows, ratio));
  out.Set("candidate_runtime_total_ratio_avg",
          MeanFigure(rows, [&](const ReplayResult& row) { return lossy(row) * ratio(row); }));
}

// An engine's workers overlap with the computation of a token, a replay's with almost nothing, so
// that figures of the queue are ranges.
void MeasureQueue(const Rows& rows, Measurements& out) {
  const RowValue queue = [](const ReplayResult& row) { return row.metrics.queue_depth_peak; };
  const RowValue least_queue = [](const ReplayResult& row) {
    return row.metrics.queue_depth_peak_least;
  };
  SetMost(rows, "runtime_queue_peak_best", queue, out);
  const double most = queue(RowWithMost(rows, queue).replay);
  const double least = least_queue(RowWithMost(rows, least_queue).replay);
  if (least < most) {
    out.SetRange("runtime_queue_peak_best",
                 {least, most,
                  fmt::format("between {:.0f} and {:.0f}, depending on the speed of the engine's "
                              "workers: only the engine's own run decides this figure",
                              least, most)});
  }
  const RowValue skip = [](const ReplayResult& row) {
    return row.metrics.sums.backpressure_skip_count;
  };
  SetMost(rows, "runtime_backpressure_skip_best", skip, out,
          [](const ReplayResult& row) { return FirstEvent(row, EventKind::kBackpressure); });
  const double skips = out.Value("runtime_backpressure_skip_best").value_or(0);
  if (skips > 0 && rows.front().replay.lossless.async_threads > 0) {
    out.SetRange("runtime_backpressure_skip_best",
                 {0, skips,
                  fmt::format("up to {:.0f}, if the engine's workers are slow: only the engine's "
                              "own run decides this figure",
                              skips)});
  }
}

// MNN's gate requires activity in modes full and store, and does not check the content.
void MeasureConsistency(const Rows& rows, const CaseResult& result, Measurements& out) {
  const bool required = result.spec.mode != "probe" && LosslessActive(rows.front().replay);
  const auto any = [&](auto test) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const ReplayedRow& r) { return test(r.replay); });
  };
  const bool fallbacks =
      any([](const ReplayResult& r) { return r.metrics.sums.fallback_count > 0; });
  const bool queued = any([](const ReplayResult& r) {
    return r.lossless.async_threads <= 0 || r.metrics.async_queue_peak > 0 ||
           r.metrics.async_wait_us > 0;
  });
  // MNN's gate tests the time spent, which a fast machine may round to 0.
  const bool restored = any([](const ReplayResult& r) {
    return r.metrics.sums.decompressed_bytes > 0 ||
           (r.engine == runtime::Engine::kDesign && r.measured.verified_raw_bytes > 0);
  });
  std::string note;
  if (fallbacks) note = "fallbacks";
  if (!queued) note += std::string(note.empty() ? "" : ", ") + "workers were never used";
  if (!restored) note += std::string(note.empty() ? "" : ", ") + "nothing was decoded";
  const std::string why = WhyNothingCompressed(rows.front().replay);
  if (!why.empty() && !note.empty()) note += "; " + why;
  out.Set("kv_content_consistency_pass", !required || (!fallbacks && queued && restored) ? 1 : 0,
          fallbacks ? FirstEvent(rows.front().replay, EventKind::kFallback) : Where{}, note);
}

// Sets the figures by the engine's definitions.
void MeasureEngine(const Rows& rows, const CaseResult& result, Measurements& out) {
  MeasureRatios(rows, out);
  MeasureQueue(rows, out);
  SetMost(
      rows, "runtime_fallback_best",
      [](const ReplayResult& row) { return row.metrics.sums.fallback_count; }, out,
      [](const ReplayResult& row) { return FirstEvent(row, EventKind::kFallback); });
  SetMost(
      rows, "runtime_decode_cache_hit_best",
      [](const ReplayResult& row) { return row.metrics.decode_cache_hit; }, out);
  SetMost(
      rows, "runtime_decode_cache_miss_best",
      [](const ReplayResult& row) { return row.metrics.decode_cache_miss; }, out);
  for (const char* name :
       {"decode_gate_tps", "decode_best", "decode_baseline", "decode_drop_ratio"}) {
    out.Missing(name, kNeedsEngine);
  }
  out.Missing("kv_invalid_log_count", "a replay writes no engine log");
  MeasureConsistency(rows, result, out);
}

// Sets the figures that depend on a clock.
void MeasureTimes(const Rows& rows, bool deterministic, const CaseResult& result,
                  Measurements& out) {
  constexpr std::string_view kTimes[] = {"runtime_decomp_best_us",
                                         "runtime_async_wait_best_us",
                                         "runtime_async_wait_headroom_us",
                                         "runtime_async_wait_headroom_ratio",
                                         "attention_tps",
                                         "attention_drop_ratio"};
  if (deterministic) {
    for (const std::string_view name : kTimes) out.Missing(name, kTimeless);
    return;
  }
  const RowValue decode = [](const ReplayResult& row) { return row.metrics.sums.decompress_us; };
  const ReplayResult& slowest = RowWithMost(rows, decode).replay;
  out.Set("runtime_decomp_best_us", decode(slowest), {}, WhyNothingCompressed(slowest));
  const RowValue wait = [](const ReplayResult& row) { return row.metrics.async_wait_us; };
  const double longest = wait(RowWithMost(rows, wait).replay);
  out.Set("runtime_async_wait_best_us", longest);
  const auto limit =
      std::find_if(result.spec.rules.begin(), result.spec.rules.end(), [](const Rule& rule) {
        return rule.metric == "runtime_async_wait_best_us" && rule.op == Op::kAtMost;
      });
  if (limit != result.spec.rules.end() && limit->limit > 0) {
    out.Set("runtime_async_wait_headroom_us", limit->limit - longest);
    out.Set("runtime_async_wait_headroom_ratio", (limit->limit - longest) / limit->limit);
  } else {
    out.Missing("runtime_async_wait_headroom_us", "no limit on runtime_async_wait_best_us");
    out.Missing("runtime_async_wait_headroom_ratio", "no limit on runtime_async_wait_best_us");
  }

  const ReplayResult& first = rows.front().replay;
  if (!first.speed || !(first.speed->tokens_per_second() > 0)) {
    const std::string why =
        first.no_speed_reason.empty() ? "no queries were recorded" : first.no_speed_reason;
    out.Missing("attention_tps", why);
    out.Missing("attention_drop_ratio", why);
    return;
  }
  const gate::Noise& noise = result.noise;
  if (noise.candidate_tps.empty()) {
    out.Set("attention_tps", first.speed->tokens_per_second());
    out.Missing("attention_drop_ratio", "no rule asks for it, so no baseline was replayed");
  } else {
    out.Set("attention_tps", noise.candidate());
    out.Set("attention_drop_ratio", (noise.baseline() - noise.candidate()) / noise.baseline(), {},
            fmt::format("{:.4g} attention steps/s, baseline {:.4g}", noise.candidate(),
                        noise.baseline()));
  }
}

// Returns the layer of which the largest share is still resident.
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
  return worst == nullptr ? Where{} : AtTokens(worst->layer, 0, row.end);
}

std::optional<double> Ratio(uint64_t raw, uint64_t stored) {
  if (stored == 0) return std::nullopt;
  return static_cast<double>(raw) / static_cast<double>(stored);
}

std::optional<double> VerifiedRatio(const runtime::Measured& measured, size_t kind) {
  return Ratio(measured.verified_raw_of[kind], measured.verified_blob_of[kind]);
}

// Measures the ratio over bytes that were decoded and compared, and the layer with the worst one. A
// row that compressed nothing has ratio 1.
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
  const RowValue ratio = [](const ReplayResult& row) { return row.measured.verified_ratio(); };
  const ReplayResult* worst = &RowWithLeast(rows, ratio).replay;
  out.Set("measured_ratio_mean", MeanFigure(rows, ratio));
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
      Where here = AtTokens(layer.layer, 0, worst->end);
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
    where = AtTokens(content.first->layer, content.first->position, content.first->position + 1);
    where.kind = content.first->is_value ? "V" : "K";
    where.head = content.first->head;
  }
  out.Set("content.mismatches", static_cast<double>(content.mismatches), where,
          "the first byte that differs from the snapshot");
}

void MeasureResident(const Rows& rows, CaseResult& result) {
  const RowValue peak = [](const ReplayResult& r) { return static_cast<double>(r.peak_bytes); };
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
  // A point every few tokens suffices for a chart; the last token always has one.
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
  const RowValue whole = [](const ReplayResult& row) { return row.whole_model_ratio(); };
  const ReplayResult& least = RowWithLeast(rows, whole).replay;
  out.Set("whole_model_ratio", whole(least), HeaviestLayer(least), WhyNothingEvicted(least));
  MeasureRatio(rows, out);
  const RowValue lossy = [](const ReplayResult& row) { return row.h2o_metrics.lossy_ratio; };
  const ReplayResult& lossiest = RowWithLeast(rows, lossy).replay;
  out.Set("lossy_worst", lossy(lossiest), LastPlan(lossiest), WhyNothingEvicted(lossiest));
  out.Set("lossy_mean", MeanFigure(rows, lossy), LastPlan(lossiest));
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
  const RowValue whole = [](const ReplayResult& row) { return row.whole_model_ratio(); };
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
