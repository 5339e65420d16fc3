// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kMaxMetrics = 1u << 20;  // bytes of one line
constexpr double kMebibyte = 1024.0 * 1024.0;

// The run of characters of `set` after the first `label` that such a run and `tail` follow.
std::string_view After(std::string_view text, std::string_view label, std::string_view set,
                       std::string_view tail) {
  for (size_t at = text.find(label); at != std::string_view::npos; at = text.find(label, at + 1)) {
    const std::string_view rest = text.substr(at + label.size());
    const size_t length = std::min(rest.find_first_not_of(set), rest.size());
    if (length > 0 && StartsWith(rest.substr(length), tail)) return rest.substr(0, length);
  }
  return {};
}

int64_t Whole(double value) {
  return std::isfinite(value) && std::abs(value) < 9e18 ? static_cast<int64_t>(value) : 0;
}

// Mean, largest and smallest of values, all 0 for none.
struct Figures {
  std::vector<double> values;

  double Mean() const {
    double sum = 0;
    for (const double value : values) sum += value;
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
  }
  double Most() const {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  }
  double Least() const {
    return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
  }
};

bool Succeeded(const Json& row) { return NumberAt(row, "effective_returncode", 1) == 0; }

std::string ReturnWord(int64_t code) {
  if (code == 0) return "ok";
  return code < 0 ? fmt::format("signal_{}", -code) : fmt::format("rc_{}", code);
}

std::vector<std::string> BucketOrder(const Json& baseline, const Json& candidate) {
  std::vector<std::string> order;
  for (const Json* summary : {&baseline, &candidate}) {
    if (!summary->is_object() || !summary->contains("bucket_order")) continue;
    for (const Json& bucket : (*summary)["bucket_order"]) {
      if (!bucket.is_string()) continue;
      const std::string name = bucket.get<std::string>();
      if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
    }
  }
  return order;
}

Json BucketStats(const Json& summary, const std::string& bucket) {
  if (!summary.is_object() || !summary.contains("bucket_stats")) return Json::object();
  const Json& all = summary["bucket_stats"];
  return all.is_object() && all.contains(bucket) ? all[bucket] : Json::object();
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

std::string PromptBucket(std::string_view prompt_file) {
  const std::string_view name = prompt_file.substr(prompt_file.find_last_of('/') + 1);
  // prompt_(digits)_digits.txt at the end of the name, in any case.
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

Json DemoRun(const DemoRunFiles& files, int64_t run_index) {
  const std::string both =
      std::string(files.standard_output) + "\n" + std::string(files.standard_error);
  const Json cli = ParseDemoStdout(both);
  const Json metrics = LastMetrics(files.metrics_jsonl);
  const bool has_cli = NumberAt(cli, "prompt_tokens") > 0 && NumberAt(cli, "prefill_s") > 0;
  const bool has_jsonl =
      NumberAt(metrics, "prompt_tokens") > 0 && NumberAt(metrics, "prefill_us") > 0;
  int64_t effective = files.return_code;
  std::string reason = ReturnWord(files.return_code);
  if (Contains(both, "LLM init error")) {
    effective = 1;
    reason = "llm_init_error";
  }
  if (effective == 0 && !has_cli && !has_jsonl) {
    effective = 2;
    reason = "missing_summary_metrics";
  }
  const auto better = [&](double structured, const char* key) {
    return structured > 0 ? structured : NumberAt(cli, key);
  };
  const double prompt_tokens = better(NumberAt(metrics, "prompt_tokens"), "prompt_tokens");
  const double decode_tokens = better(NumberAt(metrics, "decode_tokens"), "decode_tokens");
  const double prefill_s = better(NumberAt(metrics, "prefill_us") / 1e6, "prefill_s");
  const double decode_s = better(NumberAt(metrics, "decode_us") / 1e6, "decode_s");
  return {{"run_index", run_index},
          {"run_tag", files.run_tag},
          {"prompt_file", files.prompt_file},
          {"prompt_bucket", PromptBucket(files.prompt_file)},
          {"returncode", files.return_code},
          {"effective_returncode", effective},
          {"status_reason", reason},
          {"has_cli_summary_metrics", has_cli},
          {"has_jsonl_summary_metrics", has_jsonl},
          {"prompt_tokens", Whole(prompt_tokens)},
          {"decode_tokens", Whole(decode_tokens)},
          {"prefill_s", prefill_s},
          {"decode_s", decode_s},
          {"prefill_tps", prefill_s > 0 ? prompt_tokens / prefill_s : 0.0},
          {"decode_tps", decode_s > 0 ? decode_tokens / decode_s : 0.0},
          {"h2o_metrics", metrics},
          {"cli_prompt_tokens", Whole(NumberAt(cli, "prompt_tokens"))},
          {"cli_decode_tokens", Whole(NumberAt(cli, "decode_tokens"))},
          {"cli_prefill_s", NumberAt(cli, "prefill_s")},
          {"cli_decode_s", NumberAt(cli, "decode_s")},
          {"stdout_log", files.stdout_log},
          {"stderr_log", files.stderr_log},
          {"metrics_jsonl", files.metrics_path}};
}

Json SummariseRuns(const Json& rows) {
  Figures speed, keep, lossy, lossless, total, raw, compressed, decompress, hits;
  size_t passed = 0;
  for (const Json& row : rows) {
    passed += Succeeded(row) ? 1 : 0;
    const double decode = NumberAt(row, "decode_tps");
    if (decode > 0) speed.values.push_back(decode);
    if (!row.is_object()) continue;
    const Json metrics = row.value("h2o_metrics", Json::object());
    if (!metrics.is_object()) continue;
    const auto add = [&](Figures& figures, const char* key, double unit = 1) {
      figures.values.push_back(NumberAt(metrics, key) / unit);
    };
    add(keep, "h2o_keep_ratio");
    add(lossy, "h2o_lossy_ratio");
    add(lossless, "h2o_lossless_ratio");
    total.values.push_back(lossy.values.back() * lossless.values.back());
    add(raw, "h2o_lossless_raw_bytes", kMebibyte);
    add(compressed, "h2o_lossless_compressed_bytes", kMebibyte);
    add(decompress, "h2o_lossless_decompress_us");
    add(hits, "h2o_lossless_decode_cache_hit");
  }
  return {{"total_runs", rows.size()},
          {"pass_runs", passed},
          {"decode_tps_avg", speed.Mean()},
          {"decode_tps_min", speed.Least()},
          {"decode_tps_max", speed.Most()},
          {"h2o_keep_ratio_avg", keep.Mean()},
          {"h2o_lossy_ratio_avg", lossy.Mean()},
          {"h2o_lossless_ratio_avg", lossless.Mean()},
          {"h2o_runtime_total_ratio_avg", total.Mean()},
          {"h2o_lossless_raw_mb_avg", raw.Mean()},
          {"h2o_lossless_comp_mb_avg", compressed.Mean()},
          {"runtime_decomp_us_max", decompress.Most()},
          {"decode_cache_hit_max", hits.Most()},
          {"overall_pass", !rows.empty() && passed == rows.size()}};
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
  // By length, names last.
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

}  // namespace kv::mnn::logs
