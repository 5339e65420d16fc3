// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/core/base/number.h"
#include "lib/engines/mnn/logs/truth.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kMostFactNotes = 8;
constexpr size_t kMaxLayers = 1024;
constexpr size_t kMaxLogName = 1024;
constexpr size_t kMaxDigits = 18;  // as many as fit an int64_t
constexpr size_t kMaxNumber = 24;  // characters of a double
constexpr uint64_t kOldGroupTokens = 192;
constexpr std::string_view kRatio = "eff_ratio=";

using RowFigure = std::function<double(const AnalyzerRow&)>;

// The figure over rows; those that are no number are left out.
Spread SpreadOf(const std::vector<AnalyzerRow>& rows, const RowFigure& figure) {
  Spread spread;
  std::vector<double> values;
  double sum = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double value = figure(rows[i]);
    if (!std::isfinite(value)) continue;
    const std::string log = fmt::format("{} row {}", rows[i].log_file, i + 1);
    if (!spread.least || value < *spread.least) {
      spread.least = value;
      spread.least_log = log;
    }
    if (!spread.most || value > *spread.most) {
      spread.most = value;
      spread.most_log = log;
    }
    values.push_back(value);
    sum += value;
  }
  if (values.empty()) return spread;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  spread.mean = sum / static_cast<double>(n);
  spread.median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return spread;
}

// Cells that the analyzer's regular expression reads as another number.
void NoteMisreadCells(const BenchTable& table, RuntimeFacts& facts) {
  for (size_t row = 0; row < table.size(); ++row) {
    if (table.IsHeaderAgain(row)) continue;
    for (const std::string& column : table.Columns()) {
      const std::string_view cell = table.Cell(row, column);
      if (!StartsWith(column, "h2o_") || facts.notes.size() >= kMostFactNotes) continue;
      const double loose = LooseNumber(cell);
      const auto exact = FirstNumber(cell);
      if (exact && *exact != loose) {
        facts.notes.push_back(
            fmt::format("row {}: {} is '{}'; the analyzer reads {}, without the exponent", row + 1,
                        column, FirstCodePoints(cell, kShownCell), loose));
      } else if (!exact && !Strip(cell).empty()) {
        facts.notes.push_back(fmt::format(
            "row {}: {} is '{}', which is not a number; the analyzer reads {}", row + 1, column,
            FirstCodePoints(cell, kShownCell), Fixed(LooseNumber(cell, 0, true), 0)));
      }
    }
  }
}

std::optional<double> RepeatDeviation(const BenchTable& table,
                                      const std::vector<AnalyzerRow>& rows) {
  double squares = 0;
  size_t count = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double deviation = DecodeDeviation(table, i);
    if (!(rows[i].decode_tps > 0) || !(deviation > 0)) continue;
    squares += deviation / rows[i].decode_tps * (deviation / rows[i].decode_tps);
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::sqrt(squares / static_cast<double>(count));
}

// 1 - the mean of candidate / baseline over rows with the same prompt and generation lengths.
std::optional<double> LikeForLike(const BenchTable& table, const std::vector<AnalyzerRow>& rows,
                                  const BenchTable& baseline) {
  const std::vector<AnalyzerRow> before = ExactRows(baseline);
  std::map<std::string_view, std::pair<double, size_t>, std::less<>> by_length;
  for (size_t i = 0; i < before.size(); ++i) {
    if (!(before[i].decode_tps > 0) || !std::isfinite(before[i].decode_tps)) continue;
    auto& [sum, count] = by_length[baseline.Cell(i, "llm_demo")];
    sum += before[i].decode_tps;
    ++count;
  }
  double sum = 0;
  size_t count = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto found = by_length.find(table.Cell(i, "llm_demo"));
    if (found == by_length.end() || !std::isfinite(rows[i].decode_tps)) continue;
    sum += rows[i].decode_tps * static_cast<double>(found->second.second) / found->second.first;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return 1 - sum / static_cast<double>(count);
}

// "key=value" up to the next comma, in a line of the report's Pareto list.
std::string_view ParetoValue(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + key.size());
  return StripAll(line.substr(0, line.find(',')), '`');
}

// The bullets above the quality gate, and the rows that the report lists.
struct ReportHead {
  GateBullets averages;
  std::vector<AnalyzerRow> rows;
};

ReportHead ParseHead(std::string_view markdown) {
  ReportHead head;
  std::string section;
  ForEachLine(markdown, [&](std::string_view raw) {
    const std::string_view line = Strip(raw);
    if (StartsWith(line, "## ")) section = line.substr(3);
    const size_t colon = line.find(": ");
    if (section.empty() && StartsWith(line, "- ") && colon != std::string_view::npos) {
      head.averages.emplace(line.substr(2, colon - 2), Strip(line.substr(colon + 2)));
    }
    if (StartsWith(section, "Pareto") && Contains(line, "total=") && head.rows.size() < 5) {
      AnalyzerRow row{};
      row.lossy = FirstNumber(ParetoValue(line, "lossy=")).value_or(NAN);
      row.decode_tps = FirstNumber(ParetoValue(line, "decode=")).value_or(NAN);
      row.log_file = OnlyUtf8(ParetoValue(line, "log=").substr(0, kMaxLogName));
      head.rows.push_back(std::move(row));
    }
  });
  return head;
}

std::optional<double> NumberOf(const GateBullets& bullets, std::string_view key) {
  const auto found = bullets.find(key);
  if (found == bullets.end()) return std::nullopt;
  const auto number = FirstNumber(found->second);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// Megabytes are printed to two decimals: of few of them the printed ratio says more.
double MeasuredRatioOf(const AnalyzerRow& row) {
  constexpr double kEnough = 0.5;
  if (!(row.raw_mb > 0 && row.comp_mb > 0)) return NAN;
  return row.comp_mb < kEnough && row.lossless > 0 ? row.lossless : row.raw_mb / row.comp_mb;
}

std::optional<uint64_t> Field(std::string_view line, std::string_view key) {
  for (size_t at = line.find(key); at != std::string_view::npos; at = line.find(key, at + 1)) {
    if (at > 0 && line[at - 1] != ' ' && line[at - 1] != ']') continue;
    const std::string_view rest = line.substr(at + key.size());
    const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (digits == 0 || digits > kMaxDigits) return std::nullopt;
    return ParseNumber<uint64_t>(rest.substr(0, digits));
  }
  return std::nullopt;
}

}  // namespace

Json SpreadJson(const Spread& spread) {
  const auto value = [](const std::optional<double>& number) {
    return number ? Json(*number) : Json(nullptr);
  };
  return {{"least", value(spread.least)},
          {"mean", value(spread.mean)},
          {"median", value(spread.median)},
          {"most", value(spread.most)}};
}

std::optional<double> RuntimeFacts::measured_ratio_mean() const {
  if (measured.mean) return measured.mean;
  if (!raw_mb || !comp_mb || !(*raw_mb > 0) || !(*comp_mb > 0)) return std::nullopt;
  return *raw_mb / *comp_mb;
}

RuntimeFacts FactsOfTable(const BenchTable& table, const BenchTable* baseline) {
  const std::vector<AnalyzerRow> rows = ExactRows(table);
  RuntimeFacts facts;
  facts.rows = rows.size();
  const auto spread = [&](std::string_view column, const RowFigure& figure) {
    return table.HasColumn(column) ? SpreadOf(rows, figure) : Spread{};
  };
  facts.lossy = spread("h2o_lossy", &AnalyzerRow::lossy);
  facts.lossless = spread("h2o_lossless", &AnalyzerRow::lossless);
  facts.decode = spread("speed(tok/s)", &AnalyzerRow::decode_tps);
  facts.decomp_us = spread("h2o_lossless_decomp_us", &AnalyzerRow::decomp_us);
  facts.async_wait_us = spread("h2o_lossless_async_wait_us", &AnalyzerRow::async_wait_us);
  facts.queue_peak = spread("h2o_lossless_queue_peak", &AnalyzerRow::queue_peak);
  facts.fallback = spread("h2o_lossless_fallback", &AnalyzerRow::fallback);
  facts.backpressure_skip =
      spread("h2o_lossless_backpressure_skip", &AnalyzerRow::backpressure_skip);
  facts.cache_hit = spread("h2o_lossless_decode_cache_hit", &AnalyzerRow::cache_hit);
  const bool has_misses = table.HasColumn("h2o_lossless_decode_cache_miss");
  facts.cache_activity = spread("h2o_lossless_decode_cache_hit", [&](const AnalyzerRow& row) {
    return row.cache_hit + (has_misses ? row.cache_miss : 0);
  });
  facts.async_queue_peak = spread("h2o_lossless_async_queue_peak", &AnalyzerRow::async_queue_peak);
  facts.raw_mb = spread("h2o_lossless_raw_mb", &AnalyzerRow::raw_mb).mean;
  facts.comp_mb = spread("h2o_lossless_comp_mb", &AnalyzerRow::comp_mb).mean;
  facts.measured = SpreadOf(rows, MeasuredRatioOf);
  facts.repeat_deviation = RepeatDeviation(table, rows);
  if (baseline != nullptr) facts.like_for_like_drop = LikeForLike(table, rows, *baseline);
  NoteMisreadCells(table, facts);
  return facts;
}

GateBullets ReportAverages(std::string_view markdown) { return ParseHead(markdown).averages; }

RuntimeFacts FactsOfReport(std::string_view markdown) {
  const ReportHead head = ParseHead(markdown);
  const GateBullets bullets = ParseGateBullets(markdown);
  RuntimeFacts facts;
  const double rows = NumberOf(head.averages, "Rows").value_or(0);
  facts.rows = rows > 0 && rows < 1e9 ? static_cast<size_t>(rows) : 0;
  const bool all_listed = facts.rows > 0 && facts.rows == head.rows.size();
  const auto fill = [&](std::string_view average, std::string_view best) {
    Spread spread;
    spread.mean = NumberOf(head.averages, average);
    spread.most = NumberOf(bullets, best);
    if (facts.rows == 1) spread.least = spread.median = spread.most;
    return spread;
  };
  facts.lossy = fill("Avg lossy ratio", "lossy_best");
  facts.decode.mean = NumberOf(bullets, "decode_avg_tps");
  facts.decode.median = NumberOf(bullets, "decode_median_tps");
  facts.decode.most = NumberOf(bullets, "decode_best");
  if (all_listed) {
    facts.lossy = SpreadOf(head.rows, &AnalyzerRow::lossy);
    facts.decode = SpreadOf(head.rows, &AnalyzerRow::decode_tps);
  }
  facts.lossless.mean = NumberOf(head.averages, "Avg runtime lossless ratio");
  facts.raw_mb = NumberOf(head.averages, "Avg lossless raw MB");
  facts.comp_mb = NumberOf(head.averages, "Avg lossless comp MB");
  if (facts.rows == 1) facts.measured.least = facts.measured_ratio_mean();
  facts.decomp_us = fill("Avg lossless decomp us", "runtime_decomp_best_us");
  facts.async_wait_us = fill("Avg lossless async wait us", "runtime_async_wait_best_us");
  facts.queue_peak = fill("Avg lossless queue peak", "runtime_queue_peak_best");
  facts.fallback = fill("Avg lossless fallback", "runtime_fallback_best");
  facts.backpressure_skip =
      fill("Avg lossless backpressure skip", "runtime_backpressure_skip_best");
  facts.async_queue_peak = fill("Avg lossless async queue peak", "runtime_async_queue_peak_best");
  facts.cache_hit = fill("Avg lossless decode cache hit", "runtime_decode_cache_hit_best");
  facts.cache_activity.most = NumberOf(bullets, "runtime_decode_cache_activity_best");
  facts.notes.push_back("judged by summary.md alone: the case folder holds no bench logs");
  return facts;
}

AnalyzerOptions OptionsOfReport(const GateBullets& bullets, AnalyzerOptions options) {
  const auto number = [&](std::string_view key, double& target) {
    if (const auto value = NumberOf(bullets, key)) target = *value;
  };
  const auto limit = [&](std::string_view enabled, std::string_view key, double& target) {
    const auto found = bullets.find(enabled);
    if (found == bullets.end()) return;
    target = -1;
    if (found->second == "true") number(key, target);
  };
  const auto flag = [&](std::string_view key, bool& target) {
    const auto found = bullets.find(key);
    if (found != bullets.end()) target = found->second == "true";
  };
  const auto word = [&](std::string_view key, std::string& target) {
    const auto found = bullets.find(key);
    if (found != bullets.end()) target = found->second;
  };
  const auto whole = [&](std::string_view key, int64_t& target) {
    const auto value = NumberOf(bullets, key);
    if (value && std::abs(*value) < kLargestWhole) target = static_cast<int64_t>(*value);
  };
  number("lossy_target", options.lossy_target);
  number("lossless_target", options.lossless_target);
  if (!bullets.empty()) options.decode_baseline = 0;
  number("decode_baseline", options.decode_baseline);
  number("decode_drop_target", options.decode_drop_target);
  number("runtime_async_wait_headroom_warn_ratio", options.async_wait_headroom_warn_ratio);
  word("decode_aggregation", options.decode_gate_aggregation);
  word("decode_baseline_source", options.decode_baseline_source);
  word("runtime_mode", options.runtime_mode);
  whole("decode_baseline_samples", options.decode_baseline_samples);
  whole("async_threads", options.async_threads);
  whole("kv_invalid_log_max_allowed", options.max_kv_invalid_log_lines);
  limit("runtime_queue_peak_gate_enabled", "runtime_queue_peak_target",
        options.max_lossless_queue_peak);
  limit("runtime_fallback_gate_enabled", "runtime_fallback_target", options.max_lossless_fallback);
  limit("runtime_backpressure_skip_gate_enabled", "runtime_backpressure_skip_target",
        options.max_lossless_backpressure_skip);
  limit("runtime_decomp_gate_enabled", "runtime_decomp_target_us", options.max_lossless_decomp_us);
  limit("runtime_async_wait_gate_enabled", "runtime_async_wait_target_us",
        options.max_lossless_async_wait_us);
  flag("require_kv_content_consistency", options.require_kv_content_consistency);
  flag("runtime_decomp_required", options.require_runtime_decomp);
  flag("runtime_decode_cache_required", options.require_decode_cache_hit);
  flag("runtime_async_queue_activity_required", options.require_async_queue_activity);
  flag("runtime_decode_cache_activity_required", options.require_decode_cache_activity);
  flag("runtime_metric_columns_strict", options.strict_runtime_metric_columns);
  return options;
}

void ScanLosslessLines(std::string_view text, LosslessLines& lines) {
  const std::string clean = OnlyUtf8(text);
  ForEachLine(clean, [&](std::string_view line) {
    if (!Contains(line, "[H2O-LOSSLESS]")) return;
    ++lines.count;
    if (Field(line, "tokens=") == kOldGroupTokens) ++lines.of_192_tokens;
    lines.most_fallbacks = std::max(lines.most_fallbacks, Field(line, "fallback=").value_or(0));
    const auto layer = Field(line, "layer=");
    if (!layer) return;
    auto found = std::find_if(lines.layers.begin(), lines.layers.end(),
                              [&](const LosslessLines::Layer& l) { return l.layer == *layer; });
    if (found == lines.layers.end()) {
      if (lines.layers.size() == kMaxLayers) return;
      found = lines.layers.insert(lines.layers.end(), {*layer, 0, 0, 0});
    }
    ++found->lines;
    const size_t at = line.find(kRatio);
    if (at != std::string_view::npos) {
      found->last_ratio = FirstNumber(line.substr(at + kRatio.size(), kMaxNumber)).value_or(0);
    }
    found->fallbacks += static_cast<double>(Field(line, "fallback=").value_or(0));
  });
  std::sort(lines.layers.begin(), lines.layers.end(),
            [](const auto& a, const auto& b) { return a.layer < b.layer; });
}

}  // namespace kv::mnn::logs
