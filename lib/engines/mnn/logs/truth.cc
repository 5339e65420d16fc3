// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/truth.h"

#include <algorithm>
#include <cmath>

#include "lib/engines/mnn/logs/decide.h"

namespace kv::mnn::logs {
namespace {

// The engine's word on a rule, from the bullets of its report.
class Reported {
 public:
  explicit Reported(const GateBullets& bullets) : bullets_(bullets) {}

  std::optional<double> Value(std::string_view key) const {
    const auto found = bullets_.find(key);
    if (found == bullets_.end()) return std::nullopt;
    return LooseNumber(found->second);
  }
  std::optional<bool> Pass(std::string_view key) const {
    const auto found = bullets_.find(key);
    if (found == bullets_.end()) return std::nullopt;
    return found->second == "true";
  }

 private:
  const GateBullets& bullets_;
};

std::optional<double> NoiseOf(const BaselineNoise& baselines,
                              const std::optional<double>& repeat_deviation) {
  std::optional<double> noise = baselines.relative();
  if (repeat_deviation) noise = std::max(noise.value_or(0), 2 * *repeat_deviation);
  return noise;
}

// Limits on what should be small: the maximum is the worst row, for the engine too.
void AddLimits(const RuntimeFacts& facts, const Reported& reported, const AnalyzerOptions& o,
               std::vector<RuleOutcome>& rules) {
  struct Entry {
    const char *metric, *pass;
    double limit;
    const Spread& spread;
  };
  const Entry entries[] = {
      {"runtime_decomp_best_us", "runtime_decomp_budget_pass", o.max_lossless_decomp_us,
       facts.decomp_us},
      {"runtime_async_wait_best_us", "runtime_async_wait_pass", o.max_lossless_async_wait_us,
       facts.async_wait_us},
      {"runtime_queue_peak_best", "runtime_queue_peak_pass", o.max_lossless_queue_peak,
       facts.queue_peak},
      {"runtime_fallback_best", "runtime_fallback_pass", o.max_lossless_fallback, facts.fallback},
      {"runtime_backpressure_skip_best", "runtime_backpressure_skip_pass",
       o.max_lossless_backpressure_skip, facts.backpressure_skip}};
  for (const Entry& entry : entries) {
    if (entry.limit < 0) continue;
    RuleOutcome rule = Decide(entry.metric, Op::kAtMost, entry.limit, entry.spread.most,
                              entry.spread.most_log, "the worst row");
    rule.engine_value = reported.Value(entry.metric);
    rule.engine_pass = reported.Pass(entry.pass);
    rules.push_back(std::move(rule));
  }
}

// What must have happened: the engine asks for one row, the truth for all of them.
void AddActivities(const RuntimeFacts& facts, const Reported& reported, const AnalyzerOptions& o,
                   std::vector<RuleOutcome>& rules) {
  struct Entry {
    bool required;
    const char *metric, *value, *pass;
    const Spread& spread;
  };
  const Entry entries[] = {
      {o.require_runtime_decomp, "runtime_decomp_required", "runtime_decomp_best_us",
       "runtime_decomp_required_pass", facts.decomp_us},
      {o.require_decode_cache_hit, "runtime_decode_cache_required", "runtime_decode_cache_hit_best",
       "runtime_decode_cache_required_pass", facts.cache_hit},
      {o.require_async_queue_activity, "runtime_async_queue_activity_required",
       "runtime_async_queue_peak_best", "runtime_async_queue_activity_pass",
       facts.async_queue_peak},
      {o.require_decode_cache_activity, "runtime_decode_cache_activity_required",
       "runtime_decode_cache_activity_best", "runtime_decode_cache_activity_pass",
       facts.cache_activity}};
  for (const Entry& entry : entries) {
    if (!entry.required) continue;
    const bool worst_known = entry.spread.least.has_value();
    RuleOutcome rule =
        Decide(entry.metric, Op::kAbove, 0, worst_known ? entry.spread.least : entry.spread.most,
               entry.spread.least_log, "one row is enough for the engine");
    rule.engine_value = reported.Value(entry.value);
    rule.engine_pass = reported.Pass(entry.pass);
    rules.push_back(std::move(rule));
  }
}

RuleOutcome ConsistencyRule(const Reported& reported, const AnalyzerOptions& o) {
  RuleOutcome rule = NewRule("kv_content_consistency_pass", Op::kEqual);
  rule.engine_pass = reported.Pass(rule.rule.metric);
  rule.reason =
      "no K or V byte is compared anywhere in these logs: the engine counts log lines, "
      "queue activity and fallbacks";
  if (o.require_kv_content_consistency && rule.engine_pass == false) {
    rule.status = Status::kFail;
    std::string failed;
    for (const char* part : {"kv_invalid_log_pass", "kv_async_activity_pass",
                             "kv_restore_activity_pass", "kv_fallback_clean_pass"}) {
      if (reported.Pass(part) == false) failed += (failed.empty() ? "" : ", ") + std::string(part);
    }
    rule.reason = "the engine itself reports trouble" + (failed.empty() ? "" : ": " + failed);
  } else if (!o.require_kv_content_consistency) {
    rule.reason += "; for this case not even that was required, and it passed";
  }
  return rule;
}

RuleOutcome InvalidLineRule(const Reported& reported, const AnalyzerOptions& o) {
  const auto count = reported.Value("kv_invalid_log_count");
  RuleOutcome rule = Decide("kv_invalid_log_count", Op::kAtMost,
                            static_cast<double>(std::max<int64_t>(0, o.max_kv_invalid_log_lines)),
                            count, {}, "lines that say the cache is broken");
  rule.engine_value = count;
  if (o.require_kv_content_consistency) rule.engine_pass = reported.Pass("kv_invalid_log_pass");
  return rule;
}

RuleOutcome LossyRule(const RuntimeFacts& facts, const Reported& reported,
                      const AnalyzerOptions& o) {
  const Spread& lossy = facts.lossy;
  RuleOutcome rule = Decide("lossy_best", Op::kAtLeast, o.lossy_target,
                            lossy.least  ? lossy.least
                            : lossy.mean ? lossy.mean
                                         : lossy.most,
                            lossy.least_log,
                            lossy.least  ? "the worst row; the engine takes the best one"
                            : lossy.mean ? "the mean of the rows; the engine takes the best one"
                                         : "even the best row");
  rule.engine_value = reported.Value("lossy_best");
  rule.engine_pass = reported.Pass("lossy_pass");
  return rule;
}

RuleOutcome LosslessRule(const RuntimeFacts& facts, const Reported& reported,
                         const AnalyzerOptions& o) {
  if (facts.selected_lossless) {
    RuleOutcome rule = Decide("lossless_selected_value", Op::kAtLeast, o.lossless_target,
                              facts.selected_lossless, {}, "the engine's offline estimate");
    rule.engine_value = facts.selected_lossless;
    return rule;
  }
  const bool worst_known = facts.measured.least.has_value();
  const auto measured = worst_known ? facts.measured.least : facts.measured_ratio_mean();
  RuleOutcome rule =
      Decide("lossless_selected_value", Op::kAtLeast, o.lossless_target, measured,
             facts.measured.least_log,
             worst_known ? "raw over compressed bytes of the worst row itself; the engine's value "
                           "is an offline estimate of other bytes"
                         : "raw over compressed bytes of the run itself; the engine's value is an "
                           "offline estimate of other bytes");
  if (!measured) rule.reason = "the runs compressed nothing: there is no ratio to judge";
  rule.engine_value = reported.Value("lossless_online_value");
  rule.engine_pass = reported.Pass("lossless_online_pass");
  return rule;
}

double MeanDrop(const RuntimeFacts& facts, const AnalyzerOptions& o) {
  return (o.decode_baseline - *facts.decode.mean) / o.decode_baseline;
}

}  // namespace

double BaselineNoise::mean() const {
  double sum = 0;
  for (const double speed : tokens_per_second) sum += speed;
  return tokens_per_second.empty() ? 0 : sum / static_cast<double>(tokens_per_second.size());
}

std::optional<double> BaselineNoise::relative() const {
  if (tokens_per_second.size() < 2 || !(mean() > 0)) return std::nullopt;
  const auto [least, most] =
      std::minmax_element(tokens_per_second.begin(), tokens_per_second.end());
  return (*most - *least) / 2 / mean();
}

std::vector<RuleOutcome> RuntimeRules(const RuntimeFacts& facts, const GateBullets& engine,
                                      const AnalyzerOptions& o, const BaselineNoise& noise) {
  const Reported reported(engine);
  std::vector<RuleOutcome> rules;
  rules.push_back(LossyRule(facts, reported, o));
  rules.push_back(LosslessRule(facts, reported, o));
  if (o.decode_baseline > 0) {
    std::optional<double> drop = facts.like_for_like_drop;
    if (!drop && facts.decode.mean) drop = MeanDrop(facts, o);
    RuleOutcome rule = DecideDrop("decode_drop_ratio", o.decode_drop_target, drop,
                                  NoiseOf(noise, facts.repeat_deviation));
    if (!rule.reason.empty() && !facts.like_for_like_drop) {
      rule.reason += " (mean of the rows against the best baseline row, as the engine compares)";
    }
    rule.engine_value = reported.Value("decode_drop_ratio");
    rule.engine_pass = reported.Pass("decode_pass");
    rules.push_back(std::move(rule));
  }
  if (o.strict_runtime_metric_columns) {
    RuleOutcome rule = NewRule("runtime_metric_columns_ok", Op::kEqual);
    rule.engine_pass = reported.Pass("runtime_metric_columns_pass");
    const auto ok = reported.Pass("runtime_metric_columns_ok");
    if (ok) rule.status = *ok ? Status::kPass : Status::kFail;
    const auto missing = engine.find("runtime_metric_missing_columns");
    if (!ok) rule.reason = "the logs do not say";
    if (ok == false) {
      rule.reason = "missing " + (missing == engine.end() ? "columns" : missing->second);
    }
    rules.push_back(std::move(rule));
  }
  AddActivities(facts, reported, o, rules);
  AddLimits(facts, reported, o, rules);
  rules.push_back(InvalidLineRule(reported, o));
  rules.push_back(ConsistencyRule(reported, o));
  return rules;
}

Json RuntimeFigures(const RuntimeFacts& facts, const BaselineNoise& noise) {
  const auto value = [](const std::optional<double>& number) {
    return number ? Json(*number) : Json(nullptr);
  };
  return {{"rows", facts.rows},
          {"lossy_worst", value(facts.lossy.least)},
          {"lossy_mean", value(facts.lossy.mean)},
          {"lossy_median", value(facts.lossy.median)},
          {"lossless_worst", value(facts.lossless.least)},
          {"lossless_mean", value(facts.lossless.mean)},
          {"measured_ratio", value(facts.measured.least)},
          {"measured_ratio_mean", value(facts.measured_ratio_mean())},
          {"whole_model_ratio", nullptr},
          {"whole_model_ratio_reason",
           "lossy ratios are of one layer each, lossless ratios of the compressed ranges alone: "
           "their product means nothing"},
          {"content", nullptr},
          {"content_reason", "engine logs hold no K or V bytes"},
          {"decode_tokens_per_second", SpreadJson(facts.decode)},
          {"decode_repeat_deviation", value(facts.repeat_deviation)},
          {"decode_drop_like_for_like", value(facts.like_for_like_drop)},
          {"decode_noise", value(NoiseOf(noise, facts.repeat_deviation))},
          {"decompress_us", SpreadJson(facts.decomp_us)},
          {"async_wait_us", SpreadJson(facts.async_wait_us)},
          {"queue_peak", SpreadJson(facts.queue_peak)},
          {"fallbacks", SpreadJson(facts.fallback)},
          {"backpressure_skips", SpreadJson(facts.backpressure_skip)},
          {"decode_cache_hits", SpreadJson(facts.cache_hit)}};
}

}  // namespace kv::mnn::logs
