// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reproduces the engine's analyzer: its options, the figures that it computes from a bench's table,
// and the bullets of its report.
#include "lib/engines/mnn/logs/analyzer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kMaxExamples = 5;
constexpr size_t kExampleLength = 220;  // in characters
// bytes of a line that are read before it is cut
constexpr size_t kMaxBytesRead = 16 * kExampleLength;

constexpr std::string_view kRuntimeColumns[] = {
    "h2o_lossless_decomp_us",         "h2o_lossless_queue_peak",       "h2o_lossless_fallback",
    "h2o_lossless_backpressure_skip", "h2o_lossless_async_queue_peak", "h2o_lossless_async_wait_us",
    "h2o_lossless_decode_cache_hit",  "h2o_lossless_decode_cache_miss"};

constexpr std::string_view kInvalidPatterns[] = {"Invalid KV realloc",
                                                 "Invalid KV reserve range",
                                                 "KV length/meta previous mismatch",
                                                 "Drop stale per-layer pending plan",
                                                 "corrupted size",
                                                 "double free",
                                                 "Segmentation fault",
                                                 "munmap_chunk"};

using O = AnalyzerOptions;

// The direction in which an option's value is looser than the suite's.
enum class Looser { kNever, kLess, kMore };

struct OptionEntry {
  std::string_view name;
  std::variant<double O::*, int64_t O::*, bool O::*, std::string O::*> member;
  std::string_view bullet = name;  // key in a report
  Looser looser = Looser::kNever;
  std::string_view enabled = {};  // for a limit: the key that says whether there is one
  int digits = 4;
  std::string_view choices = {};  // for a text: allowed words between bars; empty: any text
};
constexpr OptionEntry kOptions[] = {
    {"lossy_target", &O::lossy_target, "lossy_target", Looser::kLess},
    {"lossless_target", &O::lossless_target, "lossless_target", Looser::kLess},
    {"decode_baseline", &O::decode_baseline},
    {"decode_gate_aggregation", &O::decode_gate_aggregation, "decode_aggregation", Looser::kNever,
     "", 0, "|avg|median|p90|best|"},
    {"decode_baseline_source", &O::decode_baseline_source},
    {"decode_baseline_samples", &O::decode_baseline_samples},
    {"decode_drop_target", &O::decode_drop_target, "decode_drop_target", Looser::kMore, "", 6},
    {"runtime_mode", &O::runtime_mode, "runtime_mode", Looser::kNever, "", 0,
     "||probe|full|store|"},
    {"async_threads", &O::async_threads},
    {"require_kv_content_consistency", &O::require_kv_content_consistency},
    {"max_kv_invalid_log_lines", &O::max_kv_invalid_log_lines, "kv_invalid_log_max_allowed",
     Looser::kMore},
    {"max_lossless_queue_peak", &O::max_lossless_queue_peak, "runtime_queue_peak_target",
     Looser::kMore, "runtime_queue_peak_gate_enabled"},
    {"max_lossless_fallback", &O::max_lossless_fallback, "runtime_fallback_target", Looser::kMore,
     "runtime_fallback_gate_enabled"},
    {"max_lossless_backpressure_skip", &O::max_lossless_backpressure_skip,
     "runtime_backpressure_skip_target", Looser::kMore, "runtime_backpressure_skip_gate_enabled"},
    {"max_lossless_decomp_us", &O::max_lossless_decomp_us, "runtime_decomp_target_us",
     Looser::kMore, "runtime_decomp_gate_enabled"},
    {"max_lossless_async_wait_us", &O::max_lossless_async_wait_us, "runtime_async_wait_target_us",
     Looser::kMore, "runtime_async_wait_gate_enabled"},
    {"async_wait_headroom_warn_ratio", &O::async_wait_headroom_warn_ratio,
     "runtime_async_wait_headroom_warn_ratio", Looser::kNever, "", 6},
    {"require_runtime_decomp", &O::require_runtime_decomp, "runtime_decomp_required"},
    {"require_decode_cache_hit", &O::require_decode_cache_hit, "runtime_decode_cache_required"},
    {"require_async_queue_activity", &O::require_async_queue_activity,
     "runtime_async_queue_activity_required"},
    {"require_decode_cache_activity", &O::require_decode_cache_activity,
     "runtime_decode_cache_activity_required"},
    {"strict_runtime_metric_columns", &O::strict_runtime_metric_columns,
     "runtime_metric_columns_strict"},
};

[[noreturn]] void Refuse(std::string_view name, std::string_view expected, std::string_view found) {
  throw Error(Finding::kUsage, "{}: expected {}, found '{}'", name, expected, found);
}

void Set(const OptionEntry& entry, std::string_view value, AnalyzerOptions& options) {
  if (const auto* number = std::get_if<double O::*>(&entry.member)) {
    const auto parsed = WholeNumber(value);
    if (!parsed || !std::isfinite(*parsed)) Refuse(entry.name, "a number", value);
    options.*(*number) = *parsed;
  } else if (const auto* whole = std::get_if<int64_t O::*>(&entry.member)) {
    const auto parsed = ParseNumber<int64_t>(value);
    if (!parsed) Refuse(entry.name, "a whole number", value);
    options.*(*whole) = *parsed;
  } else if (const auto* flag = std::get_if<bool O::*>(&entry.member)) {
    const bool on = value.empty() || value == "1" || value == "true";
    if (!on && value != "0" && value != "false") Refuse(entry.name, "true or false", value);
    options.*(*flag) = on;
  } else {
    if (!entry.choices.empty() && !Contains(entry.choices, fmt::format("|{}|", value))) {
      std::string words(StripAll(entry.choices, '|'));
      std::replace(words.begin(), words.end(), '|', ' ');
      Refuse(entry.name, "one of " + words, value);
    }
    options.*std::get<std::string O::*>(entry.member) = value;
  }
}

// Returns the text after the first "<br>" that a number follows.
std::string_view DecodeText(std::string_view cell) {
  constexpr std::string_view kBreak = "<br>";
  for (size_t at = cell.find(kBreak); at != std::string_view::npos; at = cell.find(kBreak, at)) {
    at += kBreak.size();
    const std::string_view rest = cell.substr(at);
    const size_t begin = rest.find_first_not_of(" \t\n\r\v\f");
    if (begin == std::string_view::npos) break;
    if (rest[begin] >= '0' && rest[begin] <= '9') return rest.substr(begin);
  }
  return {};
}

enum class RowReading { kAsTheTool, kExact };

AnalyzerRow ReadRow(const BenchTable& table, size_t i, RowReading reading) {
  const auto read = [&](std::string_view text) {
    if (reading == RowReading::kAsTheTool) return LooseNumber(text, 0, true);
    return HasNonFinite(text) ? NAN : FirstNumber(text).value_or(NAN);
  };
  // The tool reads the number in "h2o_lossy" as 2, so a repeated header row is a row of figures for
  // it.
  const bool no_figures = reading == RowReading::kExact && table.IsHeaderAgain(i);
  AnalyzerRow row;
  for (const RowFigure& figure : kRowFigures) {
    row.*figure.of = no_figures ? NAN : read(table.Cell(i, figure.column));
  }
  const bool has_misses = table.HasColumn("h2o_lossless_decode_cache_miss");
  row.cache_activity = row.cache_hit + (has_misses ? row.cache_miss : 0);
  row.decode_tps = read(DecodeText(table.Cell(i, kSpeedColumn)));
  row.log_file = table.Cell(i, "log_file");
  return row;
}

// Writes bullets and combines their verdicts.
class BulletWriter {
 public:
  explicit BulletWriter(const GateFigures& figures) : f_(figures), o_(figures.options) {}

  GateBullets Write() {
    for (const RowFigure& figure : kRowFigures) {
      if (!figure.best.empty()) Number(figure.best, Most(figure.of));
    }
    WriteOptions();
    Verdict("lossy_pass", Most(&AnalyzerRow::lossy) >= o_.lossy_target);
    WriteLossless();
    Flag("runtime_metric_columns_ok", f_.missing_columns.empty());
    Text("runtime_metric_missing_columns", PythonList(f_.missing_columns));
    Verdict("runtime_metric_columns_pass",
            !o_.strict_runtime_metric_columns || f_.missing_columns.empty());
    for (const RuntimeActivity& activity : kRuntimeActivities) {
      Verdict(activity.pass, !(o_.*activity.required) || Most(activity.of) > 0);
    }
    for (const RuntimeLimit& limit : kRuntimeLimits) {
      Verdict(limit.pass, !(o_.*limit.limit >= 0) || Most(limit.of) <= o_.*limit.limit);
    }
    Flag("runtime_decomp_pass", bullets_["runtime_decomp_required_pass"] == "true" &&
                                    bullets_["runtime_decomp_budget_pass"] == "true");
    WriteHeadroom();
    WriteConsistency();
    WriteDecode();
    WriteOffline("upper", f_.upper);
    WriteOffline("online", f_.online);
    Flag("overall_pass", all_);
    Text("quality_status", all_ ? "PASS" : "FAIL");
    return std::move(bullets_);
  }

 private:
  void Text(std::string_view key, std::string_view value) { bullets_[std::string(key)] = value; }
  void Number(std::string_view key, double value, int digits = 4) {
    Text(key, Fixed(value, digits));
  }
  void Flag(std::string_view key, bool value) { Text(key, Bool(value)); }
  void Whole(std::string_view key, int64_t value) { Text(key, std::to_string(value)); }
  bool Verdict(std::string_view key, bool holds) {
    Flag(key, holds);
    all_ &= holds;
    return holds;
  }

  double Most(double AnalyzerRow::*figure) const {
    double most = f_.rows.front().*figure;
    for (const AnalyzerRow& row : f_.rows) most = row.*figure > most ? row.*figure : most;
    return most;
  }

  void WriteOptions() {
    for (const OptionEntry& entry : kOptions) {
      if (const auto* number = std::get_if<double O::*>(&entry.member)) {
        const double value = o_.**number;
        if (!entry.enabled.empty()) Flag(entry.enabled, value >= 0);
        if (entry.enabled.empty() || value >= 0) Number(entry.bullet, value, entry.digits);
      } else if (const auto* whole = std::get_if<int64_t O::*>(&entry.member)) {
        Whole(entry.bullet, o_.**whole);
      } else if (const auto* flag = std::get_if<bool O::*>(&entry.member)) {
        Flag(entry.bullet, o_.**flag);
      } else {
        Text(entry.bullet, o_.*std::get<std::string O::*>(entry.member));
      }
    }
    Whole("kv_invalid_log_max_allowed", std::max<int64_t>(0, o_.max_kv_invalid_log_lines));
    const bool judged = o_.decode_baseline > 0;
    if (!judged) bullets_.erase("decode_baseline");
    if (!judged) bullets_.erase("decode_drop_target");
    if (!judged || o_.decode_baseline_source.empty()) bullets_.erase("decode_baseline_source");
    if (!judged || o_.decode_baseline_samples <= 0) bullets_.erase("decode_baseline_samples");
  }

  void WriteLossless() {
    const double online = f_.online ? f_.online->ratio : 0, upper = f_.upper ? f_.upper->ratio : 0;
    double sum = 0;
    for (const AnalyzerRow& row : f_.rows) sum += row.lossless;
    const double selected = online > 0  ? online
                            : upper > 0 ? upper
                                        : sum / static_cast<double>(f_.rows.size());
    Text("lossless_selected_source", online > 0  ? "offline_online_sim"
                                     : upper > 0 ? "offline_upper_bound"
                                                 : "runtime");
    Number("lossless_selected_value", selected);
    Flag("lossless_selected_pass", selected >= o_.lossless_target);
    Number("lossless_online_value", selected);
    Verdict("lossless_online_pass", selected >= o_.lossless_target);
  }

  void WriteHeadroom() {
    const double limit = o_.max_lossless_async_wait_us;
    if (!(limit >= 0)) {
      bullets_.erase("runtime_async_wait_headroom_warn_ratio");
      return;
    }
    const double best = Most(&AnalyzerRow::async_wait_us), warn = o_.async_wait_headroom_warn_ratio;
    const double headroom = limit > 0 ? limit - best : 0;
    const double ratio = limit > 0 ? headroom / limit : 1;
    Number("runtime_async_wait_headroom_us", headroom);
    Number("runtime_async_wait_headroom_ratio", ratio, 6);
    Flag("runtime_async_wait_headroom_warn",
         limit > 0 && warn >= 0 && best <= limit && ratio < warn);
  }

  void WriteConsistency() {
    const bool few_invalid = f_.invalid.count <= static_cast<uint64_t>(std::max<int64_t>(
                                                     0, o_.max_kv_invalid_log_lines));
    const bool needs_async = o_.async_threads > 0 && o_.runtime_mode != "probe";
    const bool has_async = !needs_async || Most(&AnalyzerRow::async_queue_peak) > 0 ||
                           Most(&AnalyzerRow::async_wait_us) > 0;
    const bool needs_restore = o_.runtime_mode == "full" || o_.runtime_mode == "store";
    const bool has_bytes = !f_.has_decompressed_bytes || Most(&AnalyzerRow::decompressed_bytes) > 0;
    const bool restores = !needs_restore || (Most(&AnalyzerRow::decomp_us) > 0 && has_bytes);
    const bool is_clean = Most(&AnalyzerRow::fallback) <= 0;
    Flag("runtime_decompressed_bytes_available", f_.has_decompressed_bytes);
    Flag("kv_restore_required", needs_restore);
    Flag("kv_restore_activity_pass", restores);
    Flag("kv_fallback_clean_pass", is_clean);
    Flag("kv_async_activity_required", needs_async);
    Flag("kv_async_activity_pass", has_async);
    Whole("kv_invalid_log_count", static_cast<int64_t>(f_.invalid.count));
    Flag("kv_invalid_log_pass", few_invalid);
    Text("kv_invalid_log_examples", PythonList(f_.invalid.examples));
    Verdict("kv_content_consistency_pass", !o_.require_kv_content_consistency ||
                                               (few_invalid && has_async && restores && is_clean));
  }

  void WriteDecode() {
    std::vector<double> speeds;
    double sum = 0;
    for (const AnalyzerRow& row : f_.rows) speeds.push_back(row.decode_tps);
    std::sort(speeds.begin(), speeds.end());
    for (const double speed : speeds) sum += speed;
    const size_t n = speeds.size();
    const double average = sum / static_cast<double>(n);
    const double median = n % 2 == 1 ? speeds[n / 2] : (speeds[n / 2 - 1] + speeds[n / 2]) / 2;
    const auto rank = static_cast<size_t>(std::ceil(0.9 * static_cast<double>(n)));
    const double p90 = speeds[std::clamp<size_t>(rank, 1, n) - 1];
    const std::string& how = o_.decode_gate_aggregation;
    const double speed = how == "best"     ? speeds.back()
                         : how == "median" ? median
                         : how == "p90"    ? p90
                                           : average;
    Flag("decode_gate_enabled", o_.decode_baseline > 0);
    Number("decode_gate_tps", speed);
    Number("decode_avg_tps", average);
    Number("decode_median_tps", median);
    Number("decode_p90_tps", p90);
    if (!(o_.decode_baseline > 0)) return;
    const double drop = (o_.decode_baseline - speed) / o_.decode_baseline;
    Number("decode_best", speeds.back());
    Number("decode_drop_ratio", drop, 6);
    Verdict("decode_pass", drop <= o_.decode_drop_target);
  }

  void WriteOffline(const std::string& name, const std::optional<OfflineRatio>& offline) {
    if (!offline) return;
    Whole(name + "_selected_entries", offline->selected_entries);
    Text(name + "_selected_layers", offline->selected_layers);
    Text(name + "_json", offline->path);
  }

  const GateFigures& f_;
  const AnalyzerOptions& o_;
  GateBullets bullets_;
  bool all_ = true;
};

// Visits the bullets below each "## Quality Gate". A report has one such section, and readers of it
// use the first.
void ForEachBullet(std::string_view markdown,
                   const std::function<void(bool in_first, const std::string& key,
                                            const std::string& value)>& use) {
  bool inside = false, is_first = true;
  const std::string clean = OnlyUtf8(markdown);
  ForEachLine(clean, [&](std::string_view raw) {
    const std::string_view line = Strip(raw);
    const bool begins = line == "## Quality Gate";
    if (inside && !begins && line.starts_with("## ")) is_first = false;
    inside = begins || (inside && !line.starts_with("## "));
    const size_t colon = line.find(':', 2);
    if (!inside || !line.starts_with("- ") || colon == std::string_view::npos) return;
    use(is_first, std::string(Strip(line.substr(2, colon - 2))),
        std::string(StripAll(Strip(line.substr(colon + 1)), '`')));
  });
}

}  // namespace

void SetAnalyzerOption(std::string_view name, std::string_view value, AnalyzerOptions& options) {
  std::string key(name.substr(name.starts_with("--") ? 2 : 0));
  std::replace(key.begin(), key.end(), '-', '_');
  const auto* found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                   [&](const OptionEntry& entry) { return entry.name == key; });
  if (found == std::end(kOptions)) {
    throw Error(Finding::kUsage, "'{}' is not an option of the analyzer", name)
        .Hint("the names are those of analyze_h2o_final.py, such as lossy_target");
  }
  Set(*found, value, options);
}

std::vector<std::string_view> AnalyzerOptionNames() {
  std::vector<std::string_view> names;
  for (const OptionEntry& entry : kOptions) names.push_back(entry.name);
  return names;
}

AnalyzerOptions SuiteOptions(std::string_view case_name) {
  AnalyzerOptions options;
  if (!case_name.starts_with("runtime_")) return options;
  options.decode_baseline_source = "same_batch";
  options.decode_baseline_samples = 1;
  options.async_threads = 2;
  options.max_lossless_queue_peak = 8;
  options.max_lossless_fallback = 0;
  options.strict_runtime_metric_columns = true;
  options.runtime_mode = "full";
  if (case_name == "runtime_baseline") {
    options.lossy_target = 1;
    options.lossless_target = 1;
    options.decode_drop_target = 1;
    options.strict_runtime_metric_columns = false;
  } else if (case_name == "runtime_probe") {
    options.runtime_mode = "probe";
    options.max_lossless_async_wait_us = 20000;
  } else {
    const bool store = case_name == "runtime_store";
    options.runtime_mode = store ? "store" : "full";
    options.require_runtime_decomp = true;
    options.require_kv_content_consistency = true;
    options.max_lossless_decomp_us = store ? 70000 : 30000;
    options.max_lossless_async_wait_us = store ? 40000 : 20000;
  }
  return options;
}

OfflineRatio ParseOfflineRatio(std::string_view json, std::string_view path) {
  const Json document = ParseJson(json, path);
  if (!document.is_object()) {
    throw Error(Finding::kBadText, "expected a JSON object with a lossless ratio").File(path);
  }
  const auto number = [&](const char* key) {
    const auto found = document.find(key);
    if (found == document.end()) return 0.0;
    if (found->is_string()) return LooseNumber(found->get_ref<const std::string&>(), 0, true);
    return NumberAt(document, key);
  };
  OfflineRatio offline;
  offline.path = path;
  offline.ratio = number(document.contains("weighted_lossless_ratio") ? "weighted_lossless_ratio"
                                                                      : "lossless_ratio");
  if (!(offline.ratio > 0) || !std::isfinite(offline.ratio)) {
    throw Error(Finding::kBadField,
                "expected a positive weighted_lossless_ratio or lossless_ratio, found {}",
                offline.ratio)
        .File(path);
  }
  const double entries = number("selected_entries");
  offline.selected_entries = std::isfinite(entries) && std::abs(entries) < kLargestWhole
                                 ? static_cast<int64_t>(entries)
                                 : 0;
  if (document.contains("selected_layers")) {
    offline.selected_layers = PythonValue(document["selected_layers"]);
  }
  return offline;
}

void ForEachInvalidLine(std::string_view text, const std::function<void(std::string_view)>& use) {
  const std::string clean = OnlyUtf8(text);
  text = clean;
  // Splits lines as Python's text files do: they end with a line feed, a carriage return or both.
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\r"), text.size());
    const std::string_view raw = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool hit =
        std::any_of(std::begin(kInvalidPatterns), std::end(kInvalidPatterns),
                    [&](std::string_view pattern) { return ContainsIgnoringCase(raw, pattern); });
    if (hit) use(raw);
  }
}

void AddInvalidLine(std::string_view line, std::string_view log, InvalidLines& found) {
  ++found.count;
  if (found.examples.size() == kMaxExamples) return;
  const std::string clean = OnlyUtf8(line.substr(0, kMaxBytesRead));
  found.examples.push_back(
      fmt::format("{}: {}", log, FirstCodePoints(Strip(clean), kExampleLength)));
}

void ScanInvalidLines(std::string_view text, std::string_view log, InvalidLines& found) {
  ForEachInvalidLine(text, [&](std::string_view line) { AddInvalidLine(line, log, found); });
}

std::vector<AnalyzerRow> ExactRows(const BenchTable& table) {
  std::vector<AnalyzerRow> rows;
  for (size_t i = 0; i < table.size(); ++i) rows.push_back(ReadRow(table, i, RowReading::kExact));
  return rows;
}

double DecodeDeviation(const BenchTable& table, size_t row) {
  constexpr std::string_view kPlusMinus = "\u00b1";
  const std::string_view text = DecodeText(table.Cell(row, "speed(tok/s)"));
  const size_t at = text.find(kPlusMinus);
  if (at == std::string_view::npos) return 0;
  return FirstNumber(text.substr(at + kPlusMinus.size())).value_or(0);
}

GateFigures Analyze(const BenchTable& table, const AnalyzerOptions& options,
                    const std::optional<OfflineRatio>& upper,
                    const std::optional<OfflineRatio>& online, const InvalidLines& invalid) {
  if (table.size() == 0) throw Error(Finding::kMissingRecord, "the table has no rows");
  GateFigures figures{{}, options, upper, online, invalid, {}};
  for (size_t i = 0; i < table.size(); ++i) {
    figures.rows.push_back(ReadRow(table, i, RowReading::kAsTheTool));
  }
  for (const std::string_view column : kRuntimeColumns) {
    if (!table.HasColumn(column)) figures.missing_columns.emplace_back(column);
  }
  figures.has_decompressed_bytes = table.HasColumn("h2o_lossless_decompressed_bytes");
  return figures;
}

GateBullets ListGateBullets(const GateFigures& figures) { return BulletWriter(figures).Write(); }

GateBullets ParseGateBullets(std::string_view markdown) {
  GateBullets bullets;
  ForEachBullet(markdown, [&](bool in_first, const std::string& key, const std::string& value) {
    if (in_first) bullets[key] = value;
  });
  return bullets;
}

std::vector<std::string> Contradictions(std::string_view markdown) {
  GateBullets seen;
  std::vector<std::string> found;
  ForEachBullet(markdown, [&](bool, const std::string& key, const std::string& value) {
    const auto [before, is_new] = seen.emplace(key, value);
    if (is_new || before->second == value) return;
    found.push_back(fmt::format("{} ({}, {})", key, FirstCodePoints(before->second, kShownCell),
                                FirstCodePoints(value, kShownCell)));
  });
  return found;
}

std::vector<std::string> MissingBullets(const GateBullets& bullets) {
  const auto is_on = [&](std::string_view key) { return TextAt(bullets, key) == "true"; };
  GateFigures asked;
  asked.rows.emplace_back();
  asked.options.decode_baseline = is_on("decode_gate_enabled") ? 1 : 0;
  for (const OptionEntry& entry : kOptions) {
    if (entry.enabled.empty()) continue;
    asked.options.*std::get<double O::*>(entry.member) = is_on(entry.enabled) ? 0 : -1;
  }
  const std::string source = TextAt(bullets, "lossless_selected_source");
  if (source == "offline_online_sim") asked.online.emplace();
  if (source == "offline_upper_bound" || bullets.contains("upper_selected_entries")) {
    asked.upper.emplace();
  }
  std::vector<std::string> missing;
  for (const auto& [key, value] : ListGateBullets(asked)) {
    if (!bullets.contains(key)) missing.push_back(key);
  }
  return missing;
}

AnalyzerOptions ReadReportOptions(const GateBullets& bullets, AnalyzerOptions options) {
  if (!bullets.empty()) options.decode_baseline = 0;
  for (const OptionEntry& entry : kOptions) {
    const auto found = bullets.find(entry.bullet);
    const auto value = NumberIn(bullets, entry.bullet);
    if (const auto* number = std::get_if<double O::*>(&entry.member)) {
      if (!entry.enabled.empty()) {
        const auto enabled = bullets.find(entry.enabled);
        if (enabled == bullets.end()) continue;
        options.** number = -1;
        if (enabled->second != "true") continue;
      }
      if (value) options.** number = *value;
    } else if (const auto* whole = std::get_if<int64_t O::*>(&entry.member)) {
      if (value && std::abs(*value) < kLargestWhole)
        options.** whole = static_cast<int64_t>(*value);
    } else if (found == bullets.end()) {
      continue;
    } else if (const auto* flag = std::get_if<bool O::*>(&entry.member)) {
      options.** flag = found->second == "true";
    } else {
      options.*std::get<std::string O::*>(entry.member) = found->second;
    }
  }
  return options;
}

std::vector<std::string> LooserOptions(const AnalyzerOptions& report,
                                       const AnalyzerOptions& suite) {
  std::vector<std::string> looser;
  for (const OptionEntry& entry : kOptions) {
    const auto value = [&](const AnalyzerOptions& options) {
      const auto* number = std::get_if<double O::*>(&entry.member);
      if (number != nullptr) return options.**number;
      const auto* whole = std::get_if<int64_t O::*>(&entry.member);
      return whole == nullptr ? 0 : static_cast<double>(options.**whole);
    };
    const double applied = value(report), own = value(suite);
    const bool is_less = entry.looser == Looser::kLess && applied < own;
    const bool is_more =
        entry.looser == Looser::kMore && own >= 0 && (applied < 0 || applied > own);
    if (!is_less && !is_more) continue;
    looser.push_back(
        fmt::format("the report was made with {} {:.6g}, but the suite's own is {:.6g}", entry.name,
                    applied, own));
  }
  return looser;
}

std::string TextAt(const GateBullets& bullets, std::string_view key, std::string otherwise) {
  const auto found = bullets.find(key);
  return found == bullets.end() ? otherwise : found->second;
}

std::optional<double> NumberIn(const GateBullets& bullets, std::string_view key) {
  if (key.empty()) return std::nullopt;  // the report lacks this figure
  const auto number = FirstNumber(TextAt(bullets, key));
  return number && std::isfinite(*number) ? number : std::nullopt;
}

}  // namespace kv::mnn::logs
