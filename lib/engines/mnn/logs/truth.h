// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/study/gate/rules.h"

namespace kv::mnn::logs {

using gate::Op;
using gate::RuleOutcome;
using gate::Status;

// True figures of a case's logs, for comparison with the engine's own. The engine takes the best
// row, kvtool the worst; the engine takes an offline estimate, kvtool the bytes that were
// compressed; kvtool compares rows of equal lengths, and allows for the noise of the baselines.

// Noise of the engine's speed, from repeated baselines of a suite in which nothing changed.
struct BaselineNoise {
  std::vector<double> tokens_per_second = {};

  double mean() const;
  // Returns half the spread of the values over their mean, or nothing from fewer than two values.
  std::optional<double> relative() const;
};

// Makes a rule without a limit, such as a verdict in words.
RuleOutcome NewRule(std::string_view metric, Op op);
// Judges a value against a limit. `unlike` explains a failure that the engine's own verdict may
// not show.
RuleOutcome Decide(std::string_view metric, Op op, double limit, const std::optional<double>& value,
                   std::string_view log, std::string_view unlike);
// Judges a drop in speed: it fails only if the drop exceeds the limit by more than its noise.
RuleOutcome DecideDrop(std::string_view metric, double limit, const std::optional<double>& drop,
                       const std::optional<double>& noise);

// One figure over the rows of a case.
struct Spread {
  std::optional<double> least, mean, median, most;
  std::string least_log, most_log;  // log and row of the smallest and of the largest value
};

struct RuntimeFacts {
  size_t rows = 0;
  std::map<std::string_view, Spread> figures = {};  // by RowFigure::key
  Spread decode;                                    // tokens/s
  Spread measured;  // raw / compressed bytes, of rows that compressed anything
  std::optional<double> selected_lossless;   // the engine's estimate, if no other figure is known
  std::optional<double> repeat_deviation;    // relative, of decode speed in repetitions
  std::optional<double> like_for_like_drop;  // drop from baseline rows of the same lengths
  std::vector<std::string> notes = {};

  const Spread& of(std::string_view key) const;
  // Returns the mean of the rows' ratios if they are known, otherwise the ratio of their mean
  // bytes.
  std::optional<double> measured_ratio_mean() const;
};
// Takes the facts from the table. `baseline` holds the rows of the same-batch baseline, if any.
RuntimeFacts CollectTableFacts(const BenchTable& table, const BenchTable* baseline);
// Takes the facts from the analyzer's report: its averages, its maxima and the rows that it lists.
RuntimeFacts CollectReportFacts(std::string_view markdown);
// Returns the bullets above the report's quality gate.
GateBullets ReportAverages(std::string_view markdown);

std::vector<RuleOutcome> RuntimeRules(const RuntimeFacts& facts, const GateBullets& engine,
                                      const AnalyzerOptions& options, const BaselineNoise& noise);
Json RuntimeFigures(const RuntimeFacts& facts, const BaselineNoise& noise);

// The [H2O-LOSSLESS] lines of a log: one per layer call that compressed.
struct LosslessLines {
  uint64_t count = 0;
  uint64_t of_192_tokens = 0;   // lines with the groups of an older engine
  uint64_t most_fallbacks = 0;  // the largest count of fallbacks in a line
  struct Layer {
    uint64_t layer = 0, lines = 0;
    double last_ratio = 0, fallbacks = 0;
  };
  std::vector<Layer> layers = {};
};
void ScanLosslessLines(std::string_view text, LosslessLines& lines);

}  // namespace kv::mnn::logs
