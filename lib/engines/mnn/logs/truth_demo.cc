// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/engines/mnn/logs/decide.h"
#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {
namespace {

// Buckets of a llm_demo report, those that are objects.
std::vector<std::pair<std::string, Json>> Buckets(const Json& report) {
  std::vector<std::pair<std::string, Json>> buckets;
  if (!report.is_object() || !report.contains("bucket_report")) return buckets;
  for (const auto& item : report["bucket_report"].items()) {
    if (item.value().is_object()) buckets.emplace_back(item.key(), item.value());
  }
  return buckets;
}

std::optional<double> Figure(const Json& object, const char* key) {
  const double number = NumberAt(object, key, NAN);
  const bool is_there = object.is_object() && object.contains(key);
  return is_there && !std::isnan(number) ? std::optional(number) : std::nullopt;
}

// The drop that a report states, or that its speeds show: the worse of both.
std::optional<double> DropOf(const Json& object) {
  std::optional<double> drop = Figure(object, "decode_drop_ratio");
  const auto before = Figure(object, "baseline_decode_tps_avg");
  const auto after = Figure(object, "candidate_decode_tps_avg");
  if (before && after && *before > 0) {
    const double shown = (*before - *after) / *before;
    drop = std::max(drop.value_or(shown), shown);
  }
  return drop;
}

// The engine has no threshold on the ratios of real prompts. Short ones are not evicted, so that
// the target of its bench is asked of them only by who names it; what must not be is that nothing
// was evicted, or that a bucket has no ratio at all.
RuleOutcome DemoLossyRule(const Json& report,
                          const std::vector<std::pair<std::string, Json>>& buckets,
                          const AnalyzerOptions& options, bool is_asked) {
  const std::optional<double> mean = Figure(report, "candidate_lossy_ratio_avg");
  std::optional<double> worst = mean;
  std::string where;
  for (const auto& [name, bucket] : buckets) {
    const double ratio = NumberAt(bucket, "candidate_lossy_ratio_avg");
    if (worst && !(ratio < *worst)) continue;
    worst = ratio;
    where = "bucket " + OnlyUtf8(name);
  }
  RuleOutcome rule = Decide("candidate_lossy_ratio_avg", Op::kAtLeast, options.lossy_target, worst,
                            where, "the engine has no rule on the ratio of real prompts");
  if (rule.status != Status::kFail || is_asked) return rule;
  if (*worst < 1) {
    rule.reason = "a ratio below 1: these runs have no figures";
  } else if (!mean || *mean <= 1) {
    rule.reason += "; at 1 nothing was evicted";
  } else {
    rule.status = Status::kNotRun;
    rule.reason += ", of which short ones are not evicted: --lossy-target judges it";
  }
  return rule;
}

RuleOutcome DemoFlag(const Json& report, const char* metric, const char* value, const char* pass) {
  RuleOutcome rule = Decide(metric, Op::kAbove, 0, NumberAt(report, value), {}, {});
  rule.engine_value = NumberAt(report, value);
  rule.engine_pass = TruthAt(report, pass);
  return rule;
}

}  // namespace

std::vector<RuleOutcome> DemoRules(const Json& report, const AnalyzerOptions& options,
                                   const BaselineNoise& noise, bool lossy_asked) {
  std::vector<RuleOutcome> rules;
  const auto buckets = Buckets(report);
  const double target = NumberAt(report, "decode_drop_target", DemoOptions{}.decode_drop_target);
  RuleOutcome drop = DecideDrop("decode_drop_ratio", target, DropOf(report), noise.relative());
  drop.engine_value = Figure(report, "decode_drop_ratio");
  drop.engine_pass = TruthAt(report, "decode_pass");
  if (!(NumberAt(report, "baseline_decode_tps_avg") > 0)) {
    drop.status = Status::kNotRun;
    drop.reason = "the baseline has no decode speed";
  }
  rules.push_back(std::move(drop));
  rules.push_back(DemoLossyRule(report, buckets, options, lossy_asked));
  rules.push_back(Decide("candidate_lossless_ratio_avg", Op::kAtLeast, options.lossless_target,
                         Figure(report, "candidate_lossless_ratio_avg"), {},
                         "the engine has no rule on the ratio of real prompts"));
  for (size_t i = rules.size() - 2; i < rules.size(); ++i) {
    rules[i].engine_value = Figure(report, rules[i].rule.metric.c_str());
  }
  if (TruthAt(report, "require_baseline_decode")) {
    rules.push_back(Decide("baseline_decode_tps_avg", Op::kAbove, 0,
                           Figure(report, "baseline_decode_tps_avg"), {}, {}));
  }
  if (TruthAt(report, "require_runtime_decomp")) {
    rules.push_back(DemoFlag(report, "require_runtime_decomp", "runtime_decomp_best_us",
                             "runtime_decomp_pass"));
  }
  if (TruthAt(report, "require_decode_cache_hit")) {
    rules.push_back(DemoFlag(report, "require_decode_cache_hit", "decode_cache_hit_best",
                             "decode_cache_hit_pass"));
  }
  for (const auto& [name, bucket] : buckets) {
    RuleOutcome rule = DecideDrop("bucket_" + OnlyUtf8(name) + "_decode_drop_ratio", target,
                                  DropOf(bucket), noise.relative());
    rule.engine_value = Figure(bucket, "decode_drop_ratio");
    rule.engine_pass = TruthAt(bucket, "decode_pass");
    if (!TruthAt(bucket, "sample_aligned") && bucket.contains("sample_aligned")) {
      rule.status = Status::kFail;
      rule.reason =
          fmt::format("{:.0f} baseline runs against {:.0f}", NumberAt(bucket, "baseline_runs"),
                      NumberAt(bucket, "candidate_runs"));
    }
    rules.push_back(std::move(rule));
  }
  for (const char* who : {"baseline_overall_pass", "candidate_overall_pass"}) {
    if (!report.is_object() || !report.contains(who) || TruthAt(report, who)) continue;
    RuleOutcome rule = NewRule(who, Op::kEqual);
    rule.status = Status::kFail;
    rule.engine_pass = false;
    rule.reason = "a run of these prompts did not end well";
    rules.push_back(std::move(rule));
  }
  return rules;
}

Json DemoFigures(const Json& report, const BaselineNoise& noise) {
  const auto buckets = Buckets(report);
  const auto mean = [&](const char* key) {
    const auto value = Figure(report, key);
    return value ? Json(*value) : Json(nullptr);
  };
  Json figures = {{"lossy_mean", mean("candidate_lossy_ratio_avg")},
                  {"lossless_mean", mean("candidate_lossless_ratio_avg")}};
  if (!buckets.empty()) {
    double lossy = HUGE_VAL, drop = -HUGE_VAL;
    for (const auto& [name, bucket] : buckets) {
      lossy = std::min(lossy, NumberAt(bucket, "candidate_lossy_ratio_avg"));
      drop = std::max(drop, NumberAt(bucket, "decode_drop_ratio"));
    }
    figures["lossy_worst"] = lossy;
    figures["decode_drop_worst"] = drop;
  }
  const auto relative = noise.relative();
  figures["decode_noise"] = relative ? Json(*relative) : Json(nullptr);
  figures["whole_model_ratio"] = nullptr;
  figures["whole_model_ratio_reason"] =
      "candidate_runtime_total_ratio_avg multiplies ratios of different layers";
  figures["content"] = nullptr;
  figures["content_reason"] = "engine logs hold no K or V bytes";
  return figures;
}

}  // namespace kv::mnn::logs
