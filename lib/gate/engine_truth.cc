// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/engine_truth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv::gate {
namespace {

std::string Percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

bool Holds(double value, std::string_view op, double limit) {
  if (op == ">=") return value >= limit;
  if (op == ">") return value > limit;
  return value <= limit;
}

// The engine's word on a rule, from the bullets of its report.
class EngineWord {
 public:
  explicit EngineWord(const GateBullets& bullets) : bullets_(bullets) {}

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

struct Limit {
  std::string_view op;
  double value;
};

// A rule whose value decides; `unlike` says why the engine's verdict on it may be another one.
EngineRule Decide(std::string_view metric, Limit limit, const std::optional<double>& value,
                  std::string_view log, std::string_view unlike) {
  EngineRule rule;
  rule.metric = metric;
  rule.op = limit.op;
  rule.limit = limit.value;
  rule.value = value;
  rule.log = log;
  if (!value) {
    rule.reason = "the logs do not say";
    return rule;
  }
  rule.status = Holds(*value, limit.op, limit.value) ? RuleStatus::kPass : RuleStatus::kFail;
  if (rule.status == RuleStatus::kFail) rule.reason = unlike;
  return rule;
}

std::optional<double> NoiseOf(const BaselineNoise& baselines,
                              const std::optional<double>& repeat_deviation) {
  std::optional<double> noise = baselines.relative();
  if (repeat_deviation) noise = std::max(noise.value_or(0), 2 * *repeat_deviation);
  return noise;
}

// A drop is judged only where it, with its noise on either side, lies beyond the limit.
EngineRule DecideDrop(std::string_view metric, double limit, const std::optional<double>& drop,
                      const std::optional<double>& noise) {
  EngineRule rule = Decide(metric, {"<=", limit}, drop, {}, {});
  if (!drop) return rule;
  const std::string what = *drop >= 0 ? Percent(*drop) + " slower" : Percent(-*drop) + " faster";
  if (!noise) {
    rule.reason = what + "; one baseline, so nothing says how much the speed varies by itself";
  } else if (*drop - *noise > limit) {
    rule.status = RuleStatus::kFail;
    rule.reason = fmt::format("{}, noise {}, allowed {}", what, Percent(*noise), Percent(limit));
  } else if (*drop + *noise <= limit) {
    rule.status = RuleStatus::kPass;
    rule.reason.clear();
  } else {
    rule.status = *drop > limit ? RuleStatus::kInconclusive : RuleStatus::kNotRun;
    rule.reason = fmt::format(
        "{}, but the baselines differ by {} without any change: the limit of "
        "{} cannot be told",
        what, Percent(*noise), Percent(limit));
    if (*drop > limit) rule.reason += "; more repeats of the baseline and of the case would tell";
  }
  return rule;
}

// Limits on what should be small: the maximum is the worst row, for the engine too.
void AddLimits(const RuntimeFacts& facts, const EngineWord& word, const AnalyzerOptions& o,
               std::vector<EngineRule>& rules) {
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
    EngineRule rule = Decide(entry.metric, {"<=", entry.limit}, entry.spread.most,
                             entry.spread.most_log, "the worst row");
    rule.engine_value = word.Value(entry.metric);
    rule.engine_pass = word.Pass(entry.pass);
    rules.push_back(std::move(rule));
  }
}

// What must have happened: the engine asks for one row, the truth for all of them.
void AddActivities(const RuntimeFacts& facts, const EngineWord& word, const AnalyzerOptions& o,
                   std::vector<EngineRule>& rules) {
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
    EngineRule rule =
        Decide(entry.metric, {">", 0}, worst_known ? entry.spread.least : entry.spread.most,
               entry.spread.least_log, "one row is enough for the engine");
    rule.engine_value = word.Value(entry.value);
    rule.engine_pass = word.Pass(entry.pass);
    rules.push_back(std::move(rule));
  }
}

EngineRule ConsistencyRule(const EngineWord& word, const AnalyzerOptions& o) {
  EngineRule rule;
  rule.metric = "kv_content_consistency_pass";
  rule.op = "==";
  rule.engine_pass = word.Pass(rule.metric);
  rule.reason =
      "no K or V byte is compared anywhere in these logs: the engine counts log lines, "
      "queue activity and fallbacks";
  if (o.require_kv_content_consistency && rule.engine_pass == false) {
    rule.status = RuleStatus::kFail;
    std::string failed;
    for (const char* part : {"kv_invalid_log_pass", "kv_async_activity_pass",
                             "kv_restore_activity_pass", "kv_fallback_clean_pass"}) {
      if (word.Pass(part) == false) failed += (failed.empty() ? "" : ", ") + std::string(part);
    }
    rule.reason = "the engine itself reports trouble: " + failed;
  } else if (!o.require_kv_content_consistency) {
    rule.reason += "; for this case not even that was required, and it passed";
  }
  return rule;
}

EngineRule InvalidLineRule(const EngineWord& word, const AnalyzerOptions& o) {
  const auto count = word.Value("kv_invalid_log_count");
  EngineRule rule =
      Decide("kv_invalid_log_count",
             {"<=", static_cast<double>(std::max<int64_t>(0, o.max_kv_invalid_log_lines))}, count,
             {}, "lines that say the cache is broken");
  rule.engine_value = count;
  if (o.require_kv_content_consistency) rule.engine_pass = word.Pass("kv_invalid_log_pass");
  return rule;
}

EngineRule LossyRule(const RuntimeFacts& facts, const EngineWord& word, const AnalyzerOptions& o) {
  const bool worst_known = facts.lossy.least.has_value();
  EngineRule rule =
      Decide("lossy_best", {">=", o.lossy_target},
             worst_known ? facts.lossy.least : facts.lossy.mean, facts.lossy.least_log,
             worst_known ? "the worst row; the engine takes the best one"
                         : "the mean of the rows; the engine takes the best one");
  rule.engine_value = word.Value("lossy_best");
  rule.engine_pass = word.Pass("lossy_pass");
  return rule;
}

EngineRule LosslessRule(const RuntimeFacts& facts, const EngineWord& word,
                        const AnalyzerOptions& o) {
  const auto measured = facts.measured_ratio();
  EngineRule rule = Decide("lossless_selected_value", {">=", o.lossless_target}, measured, {},
                           "raw over compressed bytes of the run itself; the engine's value is an "
                           "offline estimate of other bytes");
  if (!measured) rule.reason = "the runs compressed nothing: there is no ratio to judge";
  rule.engine_value = word.Value("lossless_online_value");
  rule.engine_pass = word.Pass("lossless_online_pass");
  return rule;
}

double MeanDrop(const RuntimeFacts& facts, const AnalyzerOptions& o) {
  return (o.decode_baseline - *facts.decode.mean) / o.decode_baseline;
}

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
EngineRule DemoLossyRule(const Json& report,
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
  EngineRule rule = Decide("candidate_lossy_ratio_avg", {">=", options.lossy_target}, worst, where,
                           "the engine has no rule on the ratio of real prompts");
  if (rule.status != RuleStatus::kFail || is_asked) return rule;
  if (*worst < 1) {
    rule.reason = "a ratio below 1: these runs have no figures";
  } else if (!mean || *mean <= 1) {
    rule.reason += "; at 1 nothing was evicted";
  } else {
    rule.status = RuleStatus::kNotRun;
    rule.reason += ", of which short ones are not evicted: --lossy-target judges it";
  }
  return rule;
}

EngineRule DemoFlag(const Json& report, const char* metric, const char* value, const char* pass) {
  EngineRule rule = Decide(metric, {">", 0}, NumberAt(report, value), {}, {});
  rule.engine_value = NumberAt(report, value);
  rule.engine_pass = TruthAt(report, pass);
  return rule;
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

std::vector<EngineRule> RuntimeRules(const RuntimeFacts& facts, const GateBullets& engine,
                                     const AnalyzerOptions& o, const BaselineNoise& noise) {
  const EngineWord word(engine);
  std::vector<EngineRule> rules;
  rules.push_back(LossyRule(facts, word, o));
  rules.push_back(LosslessRule(facts, word, o));
  if (o.decode_baseline > 0) {
    std::optional<double> drop = facts.like_for_like_drop;
    if (!drop && facts.decode.mean) drop = MeanDrop(facts, o);
    EngineRule rule = DecideDrop("decode_drop_ratio", o.decode_drop_target, drop,
                                 NoiseOf(noise, facts.repeat_deviation));
    if (!rule.reason.empty() && !facts.like_for_like_drop) {
      rule.reason += " (mean of the rows against the best baseline row, as the engine compares)";
    }
    rule.engine_value = word.Value("decode_drop_ratio");
    rule.engine_pass = word.Pass("decode_pass");
    rules.push_back(std::move(rule));
  }
  if (o.strict_runtime_metric_columns) {
    EngineRule rule;
    rule.metric = "runtime_metric_columns_ok";
    rule.op = "==";
    rule.engine_pass = word.Pass("runtime_metric_columns_pass");
    const auto ok = word.Pass("runtime_metric_columns_ok");
    if (ok) rule.status = *ok ? RuleStatus::kPass : RuleStatus::kFail;
    const auto missing = engine.find("runtime_metric_missing_columns");
    if (!ok) rule.reason = "the logs do not say";
    if (ok == false) {
      rule.reason = "missing " + (missing == engine.end() ? "columns" : missing->second);
    }
    rules.push_back(std::move(rule));
  }
  AddActivities(facts, word, o, rules);
  AddLimits(facts, word, o, rules);
  rules.push_back(InvalidLineRule(word, o));
  rules.push_back(ConsistencyRule(word, o));
  return rules;
}

Json RuntimeFigures(const RuntimeFacts& facts, const BaselineNoise& noise) {
  const auto value = [](const std::optional<double>& number) {
    return number ? Json(*number) : Json(nullptr);
  };
  return {
      {"rows", facts.rows},
      {"lossy_worst", value(facts.lossy.least)},
      {"lossy_mean", value(facts.lossy.mean)},
      {"lossy_median", value(facts.lossy.median)},
      {"lossless_worst", value(facts.lossless.least)},
      {"lossless_mean", value(facts.lossless.mean)},
      {"measured_ratio", value(facts.measured_ratio())},
      {"whole_model_ratio", nullptr},
      {"whole_model_ratio_reason",
       "lossy ratios are of one layer each, lossless ratios of the compressed ranges alone: their "
       "product is the ratio of nothing"},
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

std::vector<EngineRule> DemoRules(const Json& report, const AnalyzerOptions& options,
                                  const BaselineNoise& noise, bool lossy_asked) {
  std::vector<EngineRule> rules;
  const auto buckets = Buckets(report);
  const double target = NumberAt(report, "decode_drop_target", 0.08);
  EngineRule drop = DecideDrop("decode_drop_ratio", target, DropOf(report), noise.relative());
  drop.engine_value = Figure(report, "decode_drop_ratio");
  drop.engine_pass = TruthAt(report, "decode_pass");
  if (!(NumberAt(report, "baseline_decode_tps_avg") > 0)) {
    drop.status = RuleStatus::kNotRun;
    drop.reason = "the baseline has no decode speed";
  }
  rules.push_back(std::move(drop));
  rules.push_back(DemoLossyRule(report, buckets, options, lossy_asked));
  rules.push_back(Decide("candidate_lossless_ratio_avg", {">=", options.lossless_target},
                         Figure(report, "candidate_lossless_ratio_avg"), {},
                         "the engine has no rule on the ratio of real prompts"));
  for (size_t i = rules.size() - 2; i < rules.size(); ++i) {
    rules[i].engine_value = Figure(report, rules[i].metric.c_str());
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
    EngineRule rule = DecideDrop("bucket_" + OnlyUtf8(name) + "_decode_drop_ratio", target,
                                 DropOf(bucket), noise.relative());
    rule.engine_value = Figure(bucket, "decode_drop_ratio");
    rule.engine_pass = TruthAt(bucket, "decode_pass");
    if (!TruthAt(bucket, "sample_aligned") && bucket.contains("sample_aligned")) {
      rule.status = RuleStatus::kFail;
      rule.reason =
          fmt::format("{:.0f} baseline runs against {:.0f}", NumberAt(bucket, "baseline_runs"),
                      NumberAt(bucket, "candidate_runs"));
    }
    rules.push_back(std::move(rule));
  }
  for (const char* who : {"baseline_overall_pass", "candidate_overall_pass"}) {
    if (!report.is_object() || !report.contains(who) || TruthAt(report, who)) continue;
    EngineRule rule;
    rule.metric = who;
    rule.op = "==";
    rule.status = RuleStatus::kFail;
    rule.engine_pass = false;
    rule.reason = "a run of these prompts did not end well";
    rules.push_back(std::move(rule));
  }
  return rules;
}

Json DemoFigures(const Json& report, const BaselineNoise& noise) {
  const auto buckets = Buckets(report);
  Json figures = {{"lossy_mean", NumberAt(report, "candidate_lossy_ratio_avg")},
                  {"lossless_mean", NumberAt(report, "candidate_lossless_ratio_avg")}};
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

}  // namespace kv::gate
