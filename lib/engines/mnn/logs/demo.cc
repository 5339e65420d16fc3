// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reproduces the figures of llm_demo's runner: figures of a run, summaries by length of prompt, and
// the report that compares two summaries.
#include "lib/engines/mnn/logs/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kMaxMetrics = 1u << 20;  // bytes of one line
constexpr double kMebibyte = 1024.0 * 1024.0;

// Returns the longest run of characters of `set` after a label; empty if there is none. Labels
// without such a run, or whose run is not followed by `tail`, are skipped.
std::string_view After(std::string_view text, std::string_view label, std::string_view set,
                       std::string_view tail) {
  for (size_t at = text.find(label); at != std::string_view::npos; at = text.find(label, at + 1)) {
    const std::string_view rest = text.substr(at + label.size());
    const size_t length = std::min(rest.find_first_not_of(set), rest.size());
    if (length > 0 && rest.substr(length).starts_with(tail)) return rest.substr(0, length);
  }
  return {};
}

int64_t Whole(double value) {
  return std::isfinite(value) && std::abs(value) < 9e18 ? static_cast<int64_t>(value) : 0;
}

double MeanOrZero(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}
double LargestValue(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// A figure of llm_demo's metrics. `key` names its mean or, if `is_most`, its largest value in a
// summary.
struct MetricFigure {
  const char *key, *metric;
  double unit = 1;
  bool is_most = false;
};
constexpr MetricFigure kMetricFigures[] = {
    {"h2o_keep_ratio_avg", "h2o_keep_ratio"},
    {"h2o_lossy_ratio_avg", "h2o_lossy_ratio"},
    {"h2o_lossless_ratio_avg", "h2o_lossless_ratio"},
    {"h2o_runtime_total_ratio_avg", nullptr},  // the product of the two figures above
    {"h2o_lossless_raw_mb_avg", "h2o_lossless_raw_bytes", kMebibyte},
    {"h2o_lossless_comp_mb_avg", "h2o_lossless_compressed_bytes", kMebibyte},
    {"runtime_decomp_us_max", "h2o_lossless_decompress_us", 1, true},
    {"decode_cache_hit_max", "h2o_lossless_decode_cache_hit", 1, true}};

std::vector<std::string> BucketOrder(const Json& baseline, const Json& candidate) {
  std::vector<std::string> order;
  for (const Json* summary : {&baseline, &candidate}) {
    const Json* buckets = gate::Find(*summary, "bucket_order");
    if (buckets == nullptr) continue;
    for (const Json& bucket : *buckets) {
      if (!bucket.is_string()) continue;
      const std::string name = bucket.get<std::string>();
      if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
    }
  }
  return order;
}

Json BucketStats(const Json& summary, const std::string& bucket) {
  const Json* all = gate::Find(summary, "bucket_stats");
  const Json* stats = all == nullptr ? nullptr : gate::Find(*all, bucket);
  return stats == nullptr ? Json::object() : *stats;
}

Json CompareBucket(const Json& baseline, const Json& candidate, double target) {
  const double before = NumberAt(baseline, "decode_tps_avg");
  const double after = NumberAt(candidate, "decode_tps_avg");
  const int64_t runs_before = Whole(NumberAt(baseline, "total_runs"));
  const int64_t runs_after = Whole(NumberAt(candidate, "total_runs"));
  const bool aligned = runs_before == runs_after;
  const bool enabled = aligned && runs_before > 0;
  double drop = 0;
  if (enabled) drop = before > 0 ? (before - after) / before : 1;
  const bool pass = aligned && (!enabled || (before > 0 && drop <= target));
  return {
      {"baseline_runs", runs_before},
      {"candidate_runs", runs_after},
      {"sample_aligned", aligned},
      {"baseline_decode_tps_avg", before},
      {"candidate_decode_tps_avg", after},
      {"decode_drop_ratio", drop},
      {"decode_gate_enabled", enabled},
      {"decode_pass", pass},
      {"baseline_lossy_ratio_avg", NumberAt(baseline, "h2o_lossy_ratio_avg")},
      {"candidate_lossy_ratio_avg", NumberAt(candidate, "h2o_lossy_ratio_avg")},
      {"baseline_runtime_total_ratio_avg", NumberAt(baseline, "h2o_runtime_total_ratio_avg")},
      {"candidate_runtime_total_ratio_avg", NumberAt(candidate, "h2o_runtime_total_ratio_avg")}};
}

// Returns the buckets of a llm_demo report that are objects.
std::vector<std::pair<std::string, Json>> Buckets(const Json& report) {
  std::vector<std::pair<std::string, Json>> buckets;
  const Json* all = gate::Find(report, "bucket_report");
  if (all == nullptr) return buckets;
  for (const auto& item : all->items()) {
    if (item.value().is_object()) buckets.emplace_back(item.key(), item.value());
  }
  return buckets;
}

std::optional<double> Figure(const Json& object, std::string_view key) {
  const double number = NumberAt(object, key, NAN);
  return std::isnan(number) ? std::nullopt : std::optional(number);
}

// Returns the drop that a report states or that its speeds show, whichever is worse.
std::optional<double> ReadDrop(const Json& object) {
  std::optional<double> drop = Figure(object, "decode_drop_ratio");
  const auto before = Figure(object, "baseline_decode_tps_avg");
  const auto after = Figure(object, "candidate_decode_tps_avg");
  if (before && after && *before > 0) {
    const double shown = (*before - *after) / *before;
    drop = std::max(drop.value_or(shown), shown);
  }
  return drop;
}

// Judges the ratio. The engine has no threshold on the ratios of real prompts. Short ones are not
// evicted, so the target of its bench applies only if the user names it; the rule fails if nothing
// was evicted, or if a bucket has no ratio at all.
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
    rule.reason = "a ratio below 1: the runs logged no figures";
  } else if (!mean || *mean <= 1) {
    rule.reason += "; at 1 nothing was evicted";
  } else {
    rule.status = Status::kNotRun;
    rule.reason += ", and short prompts evict nothing: give --lossy-target to judge the ratio";
  }
  return rule;
}

// Parses the last line of a metrics jsonl; returns an empty object if it does not parse.
Json LastMetrics(std::string_view jsonl) {
  std::string_view last;
  ForEachLine(jsonl, [&](std::string_view line) {
    if (!Strip(line).empty()) last = line;
  });
  if (last.empty() || last.size() > kMaxMetrics) return Json::object();
  try {
    Json metrics = ParseJson(last, "metrics");
    return metrics.is_object() ? metrics : Json::object();
  } catch (const Error&) {
    return Json::object();
  }
}

}  // namespace

Json ParseDemoStdout(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789", kDecimals = "0123456789.";
  Json found = Json::object();
  const auto count = [&](const char* key, std::string_view label) {
    const std::string_view digits = After(text, label, kDigits, "");
    if (!digits.empty()) found[key] = Whole(LooseNumber(digits));
  };
  const auto seconds = [&](const char* key, std::string_view label) {
    const auto value = WholeNumber(After(text, label, kDecimals, " s"));
    if (value) found[key] = *value;
  };
  count("prompt_tokens", "prompt tokens num = ");
  count("decode_tokens", "decode tokens num = ");
  seconds("prefill_s", "prefill time = ");
  seconds("decode_s", "decode time = ");
  return found;
}

std::string PromptBucket(std::string_view prompt_file) {
  const std::string_view name = prompt_file.substr(prompt_file.find_last_of('/') + 1);
  // Matches prompt_(digits)_digits.txt at the end of the name, ignoring case.
  for (size_t at = 0; at + 7 < name.size(); ++at) {
    if (!ContainsIgnoringCase(name.substr(at, 7), "prompt_")) continue;
    const std::string_view rest = name.substr(at + 7);
    const size_t bucket = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (bucket == 0 || bucket == rest.size() || rest[bucket] != '_') continue;
    const std::string_view tail = rest.substr(bucket + 1);
    const size_t index = std::min(tail.find_first_not_of("0123456789"), tail.size());
    if (index > 0 && tail.size() == index + 4 && ContainsIgnoringCase(tail, ".txt")) {
      return std::string(rest.substr(0, bucket));
    }
  }
  return "other";
}

Json DemoRun(const DemoRunFiles& files) {
  const std::string both = files.standard_output + "\n" + files.standard_error;
  const Json cli = ParseDemoStdout(both);
  const Json metrics = LastMetrics(files.metrics_jsonl);
  const auto has = [](const Json& figures, const char* time) {
    return NumberAt(figures, "prompt_tokens") > 0 && NumberAt(figures, time) > 0;
  };
  const int64_t code = Contains(both, "LLM init error")                        ? 1
                       : !has(cli, "prefill_s") && !has(metrics, "prefill_us") ? 2
                                                                               : 0;
  // Prefers the metrics to the transcript.
  const auto better = [&](double structured, const char* key) {
    return structured > 0 ? structured : NumberAt(cli, key);
  };
  const double tokens = better(NumberAt(metrics, "decode_tokens"), "decode_tokens");
  const double seconds = better(NumberAt(metrics, "decode_us") / 1e6, "decode_s");
  return {{"prompt_bucket", PromptBucket(files.prompt_file)},
          {"effective_returncode", code},
          {"prefill_s", better(NumberAt(metrics, "prefill_us") / 1e6, "prefill_s")},
          {"decode_s", seconds},
          {"decode_tps", seconds > 0 ? tokens / seconds : 0.0},
          {"h2o_metrics", metrics}};
}

Json SummariseRuns(const Json& rows) {
  std::vector<double> speeds;
  std::vector<Json> metrics;
  size_t passed = 0;
  for (const Json& row : rows) {
    passed += NumberAt(row, "effective_returncode", 1) == 0;
    const double speed = NumberAt(row, "decode_tps");
    if (speed > 0) speeds.push_back(speed);
    Json of_row = row.is_object() ? row.value("h2o_metrics", Json::object()) : Json();
    if (of_row.is_object()) metrics.push_back(std::move(of_row));
  }
  Json summary = {
      {"total_runs", rows.size()},
      {"pass_runs", passed},
      {"decode_tps_avg", MeanOrZero(speeds)},
      {"decode_tps_min", speeds.empty() ? 0.0 : *std::min_element(speeds.begin(), speeds.end())},
      {"decode_tps_max", LargestValue(speeds)}};
  for (const MetricFigure& figure : kMetricFigures) {
    std::vector<double> values;
    for (const Json& one : metrics) {
      values.push_back(figure.metric != nullptr ? NumberAt(one, figure.metric) / figure.unit
                                                : NumberAt(one, "h2o_lossy_ratio") *
                                                      NumberAt(one, "h2o_lossless_ratio"));
    }
    summary[figure.key] = figure.is_most ? LargestValue(values) : MeanOrZero(values);
  }
  summary["overall_pass"] = !rows.empty() && passed == rows.size();
  return summary;
}

Json SummariseBuckets(const Json& rows) {
  Json summary = SummariseRuns(rows);
  std::vector<std::string> order;
  Json by_bucket = Json::object();
  for (const Json& row : rows) {
    const std::string bucket = TextAt(row, "prompt_bucket", "other");
    if (!by_bucket.contains(bucket)) order.push_back(bucket);
    by_bucket[bucket].push_back(row);
  }
  // Sorts by length; names come last.
  std::stable_sort(order.begin(), order.end(), [](const std::string& a, const std::string& b) {
    const auto length = [](const std::string& name) {
      return WholeNumber(name).value_or(HUGE_VAL);
    };
    return length(a) != length(b) ? length(a) < length(b) : a < b;
  });
  summary["bucket_order"] = order;
  summary["bucket_stats"] = Json::object();
  for (const std::string& bucket : order) {
    summary["bucket_stats"][bucket] = SummariseRuns(by_bucket[bucket]);
  }
  return summary;
}

Json DemoReport(const Json& baseline, std::string_view baseline_name, const Json& candidate,
                std::string_view candidate_name, const DemoOptions& options) {
  const double before = NumberAt(baseline, "decode_tps_avg");
  const double after = NumberAt(candidate, "decode_tps_avg");
  const bool enabled = before > 0;
  const double drop = enabled ? (before - after) / before : 0;
  const bool decode_pass =
      enabled ? drop <= options.decode_drop_target : !options.require_baseline_decode;
  const double decompress = NumberAt(candidate, "runtime_decomp_us_max");
  const double hits = NumberAt(candidate, "decode_cache_hit_max");
  const bool decompress_pass = !options.require_runtime_decomp || decompress > 0;
  const bool hits_pass = !options.require_decode_cache_hit || hits > 0;

  Json buckets = Json::object(), slow = Json::array(), unaligned = Json::array();
  for (const std::string& bucket : BucketOrder(baseline, candidate)) {
    buckets[bucket] = CompareBucket(BucketStats(baseline, bucket), BucketStats(candidate, bucket),
                                    options.decode_drop_target);
    if (!TruthAt(buckets[bucket], "decode_pass")) slow.push_back(bucket);
    if (!TruthAt(buckets[bucket], "sample_aligned")) unaligned.push_back(bucket);
  }
  const bool bucket_pass = slow.empty() && unaligned.empty();
  const bool ran = TruthAt(baseline, "overall_pass") && TruthAt(candidate, "overall_pass");
  Json report = {{"overall_pass", ran && decode_pass && decompress_pass && hits_pass &&
                                      (bucket_pass || !options.require_bucket_decode_pass)},
                 {"baseline_summary", baseline_name},
                 {"candidate_summary", candidate_name},
                 {"baseline_decode_tps_avg", before},
                 {"candidate_decode_tps_avg", after},
                 {"decode_drop_ratio", drop},
                 {"decode_drop_target", options.decode_drop_target},
                 {"decode_gate_enabled", enabled},
                 {"decode_pass", decode_pass},
                 {"decode_skip_reason", enabled ? "" : "baseline_decode_tps_avg<=0"}};
  for (const bool first : {true, false}) {
    const std::string who = first ? "baseline_" : "candidate_";
    const Json& summary = first ? baseline : candidate;
    report[who + "keep_ratio_avg"] = NumberAt(summary, "h2o_keep_ratio_avg");
    report[who + "lossy_ratio_avg"] = NumberAt(summary, "h2o_lossy_ratio_avg");
    report[who + "lossless_ratio_avg"] = NumberAt(summary, "h2o_lossless_ratio_avg");
    report[who + "runtime_total_ratio_avg"] = NumberAt(summary, "h2o_runtime_total_ratio_avg");
  }
  report.update(Json{{"require_runtime_decomp", options.require_runtime_decomp},
                     {"runtime_decomp_best_us", decompress},
                     {"runtime_decomp_pass", decompress_pass},
                     {"require_decode_cache_hit", options.require_decode_cache_hit},
                     {"decode_cache_hit_best", hits},
                     {"decode_cache_hit_pass", hits_pass},
                     {"require_baseline_decode", options.require_baseline_decode},
                     {"require_bucket_decode_pass", options.require_bucket_decode_pass},
                     {"run_order", options.run_order},
                     {"bucket_gate_pass", bucket_pass},
                     {"bucket_decode_pass", slow.empty()},
                     {"bucket_sample_alignment_pass", unaligned.empty()},
                     {"bucket_decode_failures", slow},
                     {"bucket_alignment_failures", unaligned},
                     {"bucket_report", buckets},
                     {"baseline_overall_pass", TruthAt(baseline, "overall_pass")},
                     {"candidate_overall_pass", TruthAt(candidate, "overall_pass")}});
  return report;
}

std::vector<RuleOutcome> DemoRules(const Json& report, const AnalyzerOptions& options,
                                   const BaselineNoise& noise, bool lossy_asked) {
  std::vector<RuleOutcome> rules;
  const auto buckets = Buckets(report);
  const double target = NumberAt(report, "decode_drop_target", DemoOptions{}.decode_drop_target);
  RuleOutcome drop = DecideDrop("decode_drop_ratio", target, ReadDrop(report), noise.relative());
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
  for (RuleOutcome& rule : rules) rule.engine_value = Figure(report, rule.rule.metric);
  if (TruthAt(report, "require_baseline_decode")) {
    rules.push_back(Decide("baseline_decode_tps_avg", Op::kAbove, 0,
                           Figure(report, "baseline_decode_tps_avg"), {}, {}));
  }
  const auto must_happen = [&](const char* metric, const char* value, const char* pass) {
    if (!TruthAt(report, metric)) return;
    RuleOutcome rule = Decide(metric, Op::kAbove, 0, NumberAt(report, value), {}, {});
    rule.engine_value = NumberAt(report, value);
    rule.engine_pass = TruthAt(report, pass);
    rules.push_back(std::move(rule));
  };
  must_happen("require_runtime_decomp", "runtime_decomp_best_us", "runtime_decomp_pass");
  must_happen("require_decode_cache_hit", "decode_cache_hit_best", "decode_cache_hit_pass");
  for (const auto& [name, bucket] : buckets) {
    RuleOutcome rule = DecideDrop("bucket_" + OnlyUtf8(name) + "_decode_drop_ratio", target,
                                  ReadDrop(bucket), noise.relative());
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
    rule.reason = "a run of these prompts failed";
    rules.push_back(std::move(rule));
  }
  return rules;
}

Json DemoFigures(const Json& report, const BaselineNoise& noise) {
  const auto buckets = Buckets(report);
  Json figures = {{"lossy_mean", NumberJson(Figure(report, "candidate_lossy_ratio_avg"))},
                  {"lossless_mean", NumberJson(Figure(report, "candidate_lossless_ratio_avg"))}};
  if (!buckets.empty()) {
    double lossy = HUGE_VAL, drop = -HUGE_VAL;
    for (const auto& [name, bucket] : buckets) {
      lossy = std::min(lossy, NumberAt(bucket, "candidate_lossy_ratio_avg"));
      drop = std::max(drop, NumberAt(bucket, "decode_drop_ratio"));
    }
    figures["lossy_worst"] = lossy;
    figures["decode_drop_worst"] = drop;
  }
  figures["decode_noise"] = NumberJson(noise.relative());
  figures["whole_model_ratio"] = nullptr;
  figures["whole_model_ratio_reason"] =
      "candidate_runtime_total_ratio_avg multiplies ratios of different layers";
  figures["content"] = nullptr;
  figures["content_reason"] = "engine logs hold no K or V bytes";
  return figures;
}

}  // namespace kv::mnn::logs
