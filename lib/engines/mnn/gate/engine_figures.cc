// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/engines/mnn/gate/row_figures.h"
#include "lib/engines/mnn/gate/why_nothing.h"

namespace kv::mnn {

using namespace gate;
using runtime::EventKind;
using runtime::ReplayResult;

namespace {

constexpr char kNeedsEngine[] = "tokens/s of a whole model: only an engine can measure it";
constexpr char kTimeless[] = "a time: --deterministic omits times";

bool LosslessActive(const ReplayResult& row) { return row.lossless.active(); }

}  // namespace

void MeasureEngine(const Rows& rows, const CaseResult& result, Measurements& out) {
  const auto set_most = [&](std::string_view name, const Value& value,
                            Where (*where)(const ReplayResult&), const std::string& note = {}) {
    const ReplayResult& row = RowWithMost(rows, value).replay;
    out.Set(name, value(row), where == nullptr ? Where{} : where(row), note);
  };
  const Value lossy = [](const ReplayResult& row) { return row.h2o_metrics.lossy_ratio; };
  set_most("lossy_best", lossy, LastPlan, WhyNothingEvicted(RowWithMost(rows, lossy).replay));
  const Value queue = [](const ReplayResult& row) { return row.metrics.queue_depth_peak; };
  const Value least_queue = [](const ReplayResult& row) {
    return row.metrics.queue_depth_peak_least;
  };
  set_most("runtime_queue_peak_best", queue, nullptr);
  // An engine's workers overlap with the rest of a token, a replay's with next to nothing.
  const double most = queue(RowWithMost(rows, queue).replay);
  const double least = least_queue(RowWithMost(rows, least_queue).replay);
  if (least < most) {
    out.SetRange("runtime_queue_peak_best",
                 {least, most,
                  fmt::format("between {:.0f} and {:.0f}, as the engine's workers are quick or "
                              "slow: only the engine's own run decides it",
                              least, most)});
  }
  set_most(
      "runtime_fallback_best",
      [](const ReplayResult& row) { return row.metrics.sums.fallback_count; },
      [](const ReplayResult& row) { return FirstEvent(row, EventKind::kFallback); });
  set_most(
      "runtime_backpressure_skip_best",
      [](const ReplayResult& row) { return row.metrics.sums.backpressure_skip_count; },
      [](const ReplayResult& row) { return FirstEvent(row, EventKind::kBackpressure); });
  const double skips = out.Value("runtime_backpressure_skip_best").value_or(0);
  if (skips > 0 && rows.front().replay.lossless.async_threads > 0) {
    out.SetRange("runtime_backpressure_skip_best",
                 {0, skips,
                  fmt::format("up to {:.0f}, if the engine's workers are slow: only the engine's "
                              "own run decides it",
                              skips)});
  }
  set_most(
      "runtime_decode_cache_hit_best",
      [](const ReplayResult& row) { return row.metrics.decode_cache_hit; }, nullptr);
  set_most(
      "runtime_decode_cache_miss_best",
      [](const ReplayResult& row) { return row.metrics.decode_cache_miss; }, nullptr);

  const Value ratio = [](const ReplayResult& row) { return row.metrics.ratio; };
  out.Set("candidate_lossy_ratio_avg", MeanOf(rows, lossy));
  out.Set("candidate_lossless_ratio_avg", MeanOf(rows, ratio));
  out.Set("candidate_runtime_total_ratio_avg",
          MeanOf(rows, [&](const ReplayResult& row) { return lossy(row) * ratio(row); }));
  for (const char* name :
       {"decode_gate_tps", "decode_best", "decode_baseline", "decode_drop_ratio"}) {
    out.Missing(name, kNeedsEngine);
  }
  out.Missing("kv_invalid_log_count", "a replay writes no engine log");

  // The original's test: required in full and store only, and about activity, not about content.
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
  // The original asks for time spent, which a quick machine may round to 0.
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
  const Value decode = [](const ReplayResult& row) { return row.metrics.sums.decompress_us; };
  const ReplayResult& slowest = RowWithMost(rows, decode).replay;
  out.Set("runtime_decomp_best_us", decode(slowest), {}, WhyNothingCompressed(slowest));
  const Value wait = [](const ReplayResult& row) { return row.metrics.async_wait_us; };
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

}  // namespace kv::mnn
