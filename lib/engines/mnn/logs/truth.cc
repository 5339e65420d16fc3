// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Computes the true figures of a case from its table or report, and judges the rules on them.
#include "lib/engines/mnn/logs/truth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lib/core/base/number.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kMostFactNotes = 8;
constexpr size_t kMaxLayers = 1024;
constexpr size_t kMaxLogName = 1024;
constexpr size_t kMaxDigits = 18;  // digits that always fit an int64_t
constexpr size_t kMaxNumber = 24;  // characters of a double
constexpr uint64_t kOldGroupTokens = 192;
constexpr std::string_view kRatio = "eff_ratio=";

// Returns the figure over rows, without those that are not a number.
Spread ComputeSpread(const std::vector<AnalyzerRow>& rows,
                     const std::function<double(const AnalyzerRow&)>& figure) {
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

// Notes cells that the analyzer's regular expression reads as another number.
void NoteMisreadCells(const BenchTable& table, RuntimeFacts& facts) {
  for (size_t row = 0; row < table.size(); ++row) {
    if (table.IsHeaderAgain(row)) continue;
    for (const std::string& column : table.Columns()) {
      const std::string_view cell = table.Cell(row, column);
      if (!column.starts_with("h2o_") || facts.notes.size() >= kMostFactNotes) continue;
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

// Returns 1 - the mean of candidate / baseline over rows with the same prompt and generation
// lengths.
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

// Returns the value of "key=value", up to the next comma, in a line of the report's Pareto list.
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
    if (line.starts_with("## ")) section = line.substr(3);
    const size_t colon = line.find(": ");
    if (section.empty() && line.starts_with("- ") && colon != std::string_view::npos) {
      head.averages.emplace(line.substr(2, colon - 2), Strip(line.substr(colon + 2)));
    }
    if (section.starts_with("Pareto") && Contains(line, "total=") && head.rows.size() < 5) {
      AnalyzerRow row{};
      row.lossy = FirstNumber(ParetoValue(line, "lossy=")).value_or(NAN);
      row.decode_tps = FirstNumber(ParetoValue(line, "decode=")).value_or(NAN);
      row.log_file = OnlyUtf8(ParetoValue(line, "log=").substr(0, kMaxLogName));
      head.rows.push_back(std::move(row));
    }
  });
  return head;
}

// Returns the ratio of the printed megabytes; they have two decimals, so for small numbers the
// printed ratio is more precise.
double ComputeMeasuredRatio(const AnalyzerRow& row) {
  // MB below which two printed decimals are less precise than the printed ratio.
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

std::string Percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::optional<double> FindNoise(const BaselineNoise& baselines,
                                const std::optional<double>& repeat_deviation) {
  std::optional<double> noise = baselines.relative();
  if (repeat_deviation) noise = std::max(noise.value_or(0), 2 * *repeat_deviation);
  return noise;
}

// Returns the engine's own figure for a rule, from the bullets of its report.
std::optional<double> Reported(const GateBullets& engine, std::string_view key) {
  const auto found = engine.find(key);
  return found == engine.end() ? std::nullopt : std::optional(LooseNumber(found->second));
}
std::optional<bool> ReportedPass(const GateBullets& engine, std::string_view key) {
  const auto found = engine.find(key);
  return found == engine.end() ? std::nullopt : std::optional(found->second == "true");
}
RuleOutcome WithReported(RuleOutcome rule, const GateBullets& engine, std::string_view value,
                         std::string_view pass) {
  rule.engine_value = Reported(engine, value);
  rule.engine_pass = ReportedPass(engine, pass);
  return rule;
}

RuleOutcome ConsistencyRule(const GateBullets& engine, const AnalyzerOptions& o) {
  RuleOutcome rule = NewRule("kv_content_consistency_pass", Op::kEqual);
  rule.engine_pass = ReportedPass(engine, rule.rule.metric);
  rule.reason =
      "no K or V byte is compared anywhere in these logs: the engine counts log lines, "
      "queue activity and fallbacks";
  if (o.require_kv_content_consistency && rule.engine_pass == false) {
    rule.status = Status::kFail;
    std::string failed;
    for (const char* part : {"kv_invalid_log_pass", "kv_async_activity_pass",
                             "kv_restore_activity_pass", "kv_fallback_clean_pass"}) {
      if (ReportedPass(engine, part) == false)
        failed += (failed.empty() ? "" : ", ") + std::string(part);
    }
    rule.reason = "the engine itself reports trouble" + (failed.empty() ? "" : ": " + failed);
  } else if (!o.require_kv_content_consistency) {
    rule.reason += "; in this case the engine did not require even this rule, and passed it";
  }
  return rule;
}

RuleOutcome InvalidLineRule(const GateBullets& engine, const AnalyzerOptions& o) {
  const auto count = Reported(engine, "kv_invalid_log_count");
  RuleOutcome rule = Decide("kv_invalid_log_count", Op::kAtMost,
                            static_cast<double>(std::max<int64_t>(0, o.max_kv_invalid_log_lines)),
                            count, {}, "lines that say the cache is broken");
  rule.engine_value = count;
  if (o.require_kv_content_consistency) {
    rule.engine_pass = ReportedPass(engine, "kv_invalid_log_pass");
  }
  return rule;
}

RuleOutcome ColumnsRule(const GateBullets& engine) {
  RuleOutcome rule = NewRule("runtime_metric_columns_ok", Op::kEqual);
  rule.engine_pass = ReportedPass(engine, "runtime_metric_columns_pass");
  const auto ok = ReportedPass(engine, "runtime_metric_columns_ok");
  if (ok) rule.status = *ok ? Status::kPass : Status::kFail;
  if (!ok) rule.reason = "the logs do not say";
  if (ok == false) {
    rule.reason = "missing " + TextAt(engine, "runtime_metric_missing_columns", "columns");
  }
  return rule;
}

RuleOutcome LossyRule(const RuntimeFacts& facts, const GateBullets& engine,
                      const AnalyzerOptions& o) {
  const Spread& lossy = facts.of("lossy_best");
  const auto& value = lossy.least ? lossy.least : lossy.mean ? lossy.mean : lossy.most;
  const char* unlike = lossy.least  ? "the worst row; the engine takes the best one"
                       : lossy.mean ? "the mean of the rows; the engine takes the best one"
                                    : "even the best row";
  return WithReported(
      Decide("lossy_best", Op::kAtLeast, o.lossy_target, value, lossy.least_log, unlike), engine,
      "lossy_best", "lossy_pass");
}

RuleOutcome LosslessRule(const RuntimeFacts& facts, const GateBullets& engine,
                         const AnalyzerOptions& o) {
  constexpr const char* kMetric = "lossless_selected_value";
  if (facts.selected_lossless) {
    RuleOutcome rule = Decide(kMetric, Op::kAtLeast, o.lossless_target, facts.selected_lossless, {},
                              "the engine's offline estimate");
    rule.engine_value = facts.selected_lossless;
    return rule;
  }
  const bool worst_known = facts.measured.least.has_value();
  const auto measured = worst_known ? facts.measured.least : facts.measured_ratio_mean();
  RuleOutcome rule =
      Decide(kMetric, Op::kAtLeast, o.lossless_target, measured, facts.measured.least_log,
             fmt::format("raw / compressed bytes of the {} itself; the engine's value is an "
                         "offline estimate of other bytes",
                         worst_known ? "worst row" : "run"));
  if (!measured) rule.reason = "the runs compressed nothing: there is no ratio to judge";
  return WithReported(std::move(rule), engine, "lossless_online_value", "lossless_online_pass");
}

}  // namespace

RuleOutcome NewRule(std::string_view metric, Op op) {
  RuleOutcome rule;
  rule.rule.metric = metric;
  rule.rule.op = op;
  rule.rule.limit = std::numeric_limits<double>::quiet_NaN();
  return rule;
}

RuleOutcome Decide(std::string_view metric, Op op, double limit, const std::optional<double>& value,
                   std::string_view log, std::string_view unlike) {
  RuleOutcome rule = NewRule(metric, op);
  rule.rule.limit = limit;
  rule.value = value;
  rule.where.log = log;
  if (!value) {
    rule.reason = "the logs do not say";
    return rule;
  }
  rule.status = gate::Holds(*value, op, limit) ? Status::kPass : Status::kFail;
  if (rule.status == Status::kFail) rule.reason = unlike;
  return rule;
}

RuleOutcome DecideDrop(std::string_view metric, double limit, const std::optional<double>& drop,
                       const std::optional<double>& noise) {
  RuleOutcome rule = Decide(metric, Op::kAtMost, limit, drop, {}, {});
  if (!drop) return rule;
  const std::string what = *drop >= 0 ? Percent(*drop) + " slower" : Percent(-*drop) + " faster";
  if (!noise) {
    rule.reason = what + "; with one baseline it is unknown how much the speed varies by itself";
  } else if (*drop - *noise > limit) {
    rule.status = Status::kFail;
    rule.reason = fmt::format("{}, noise {}, allowed {}", what, Percent(*noise), Percent(limit));
  } else if (*drop + *noise <= limit) {
    rule.status = Status::kPass;
    rule.reason.clear();
  } else {
    rule.status = *drop > limit ? Status::kInconclusive : Status::kNotRun;
    rule.reason = fmt::format(
        "{}, but the baselines differ by {} without any change: the limit of {} cannot be judged",
        what, Percent(*noise), Percent(limit));
    if (*drop > limit) rule.reason += "; more repeats of the baseline and of the case would decide";
  }
  return rule;
}

const Spread& RuntimeFacts::of(std::string_view key) const {
  static const Spread none;
  const auto found = figures.find(key);
  return found == figures.end() ? none : found->second;
}

std::optional<double> RuntimeFacts::measured_ratio_mean() const {
  if (measured.mean) return measured.mean;
  const auto raw = of("h2o_lossless_raw_mb").mean, comp = of("h2o_lossless_comp_mb").mean;
  if (!raw || !comp || !(*raw > 0) || !(*comp > 0)) return std::nullopt;
  return *raw / *comp;
}

RuntimeFacts CollectTableFacts(const BenchTable& table, const BenchTable* baseline) {
  const std::vector<AnalyzerRow> rows = ExactRows(table);
  RuntimeFacts facts;
  facts.rows = rows.size();
  for (const RowFigure& figure : kRowFigures) {
    if (table.HasColumn(figure.column))
      facts.figures[figure.key()] = ComputeSpread(rows, figure.of);
  }
  if (table.HasColumn(kSpeedColumn)) facts.decode = ComputeSpread(rows, &AnalyzerRow::decode_tps);
  facts.measured = ComputeSpread(rows, ComputeMeasuredRatio);
  facts.repeat_deviation = RepeatDeviation(table, rows);
  if (baseline != nullptr) facts.like_for_like_drop = LikeForLike(table, rows, *baseline);
  NoteMisreadCells(table, facts);
  return facts;
}

GateBullets ReportAverages(std::string_view markdown) { return ParseHead(markdown).averages; }

RuntimeFacts CollectReportFacts(std::string_view markdown) {
  const ReportHead head = ParseHead(markdown);
  const GateBullets bullets = ParseGateBullets(markdown);
  RuntimeFacts facts;
  const double rows = NumberIn(head.averages, "Rows").value_or(0);
  facts.rows = rows > 0 && rows < 1e9 ? static_cast<size_t>(rows) : 0;
  for (const RowFigure& figure : kRowFigures) {
    Spread& spread = facts.figures[figure.key()];
    spread.mean = NumberIn(head.averages, figure.average);
    spread.most = NumberIn(bullets, figure.best);
    if (facts.rows == 1) spread.least = spread.median = spread.most;
  }
  facts.decode.mean = NumberIn(bullets, "decode_avg_tps");
  facts.decode.median = NumberIn(bullets, "decode_median_tps");
  facts.decode.most = NumberIn(bullets, "decode_best");
  if (facts.rows > 0 && facts.rows == head.rows.size()) {  // true if the report lists all rows
    facts.figures["lossy_best"] = ComputeSpread(head.rows, &AnalyzerRow::lossy);
    facts.decode = ComputeSpread(head.rows, &AnalyzerRow::decode_tps);
  }
  if (facts.rows == 1) facts.measured.least = facts.measured_ratio_mean();
  facts.notes.push_back("judged by summary.md alone: the case folder holds no bench logs");
  return facts;
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
  std::vector<RuleOutcome> rules = {LossyRule(facts, engine, o), LosslessRule(facts, engine, o)};
  if (o.decode_baseline > 0) {
    std::optional<double> drop = facts.like_for_like_drop;
    if (!drop && facts.decode.mean) {
      drop = (o.decode_baseline - *facts.decode.mean) / o.decode_baseline;
    }
    RuleOutcome rule = DecideDrop("decode_drop_ratio", o.decode_drop_target, drop,
                                  FindNoise(noise, facts.repeat_deviation));
    if (!rule.reason.empty() && !facts.like_for_like_drop) {
      rule.reason += " (mean of the rows against the best baseline row, as the engine compares)";
    }
    rules.push_back(WithReported(std::move(rule), engine, "decode_drop_ratio", "decode_pass"));
  }
  if (o.strict_runtime_metric_columns) rules.push_back(ColumnsRule(engine));
  // The engine requires that one row was active, the true rule that all were.
  for (const RuntimeActivity& activity : kRuntimeActivities) {
    if (!(o.*activity.required)) continue;
    const Spread& spread = facts.of(activity.best);
    rules.push_back(WithReported(
        Decide(activity.metric, Op::kAbove, 0, spread.least ? spread.least : spread.most,
               spread.least_log, "one row is enough for the engine"),
        engine, activity.best, activity.pass));
  }
  // For figures that should be small the maximum is the worst row, in the engine's rule too.
  for (const RuntimeLimit& limit : kRuntimeLimits) {
    if (o.*limit.limit < 0) continue;
    const Spread& spread = facts.of(limit.best);
    rules.push_back(WithReported(Decide(limit.best, Op::kAtMost, o.*limit.limit, spread.most,
                                        spread.most_log, "the worst row"),
                                 engine, limit.best, limit.pass));
  }
  rules.push_back(InvalidLineRule(engine, o));
  rules.push_back(ConsistencyRule(engine, o));
  return rules;
}

Json RuntimeFigures(const RuntimeFacts& facts, const BaselineNoise& noise) {
  const auto spread_json = [](const Spread& spread) -> Json {
    return {{"least", NumberJson(spread.least)},
            {"mean", NumberJson(spread.mean)},
            {"median", NumberJson(spread.median)},
            {"most", NumberJson(spread.most)}};
  };
  const Spread &lossy = facts.of("lossy_best"), &lossless = facts.of("h2o_lossless");
  return {{"rows", facts.rows},
          {"lossy_worst", NumberJson(lossy.least)},
          {"lossy_mean", NumberJson(lossy.mean)},
          {"lossy_median", NumberJson(lossy.median)},
          {"lossless_worst", NumberJson(lossless.least)},
          {"lossless_mean", NumberJson(lossless.mean)},
          {"measured_ratio", NumberJson(facts.measured.least)},
          {"measured_ratio_mean", NumberJson(facts.measured_ratio_mean())},
          {"whole_model_ratio", nullptr},
          {"whole_model_ratio_reason",
           "lossy ratios are of one layer each, lossless ratios of the compressed ranges alone: "
           "their product means nothing"},
          {"content", nullptr},
          {"content_reason", "engine logs hold no K or V bytes"},
          {"decode_tokens_per_second", spread_json(facts.decode)},
          {"decode_repeat_deviation", NumberJson(facts.repeat_deviation)},
          {"decode_drop_like_for_like", NumberJson(facts.like_for_like_drop)},
          {"decode_noise", NumberJson(FindNoise(noise, facts.repeat_deviation))},
          {"decompress_us", spread_json(facts.of("runtime_decomp_best_us"))},
          {"async_wait_us", spread_json(facts.of("runtime_async_wait_best_us"))},
          {"queue_peak", spread_json(facts.of("runtime_queue_peak_best"))},
          {"fallbacks", spread_json(facts.of("runtime_fallback_best"))},
          {"backpressure_skips", spread_json(facts.of("runtime_backpressure_skip_best"))},
          {"decode_cache_hits", spread_json(facts.of("runtime_decode_cache_hit_best"))}};
}

}  // namespace kv::mnn::logs
