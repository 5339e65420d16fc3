// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/progress.h"
#include "lib/study/gate/logs.h"
#include "lib/study/gate/params.h"
#include "lib/study/gate/result.h"
#include "lib/study/gate/subject.h"

namespace kv::gate {

struct CaseView;

// A group of an engine's cases, and its heading in summary.md.
struct SuiteInfo {
  std::string_view name, heading;
};

// A figure as the engine defines it, and the figure that answers the question behind it.
struct FigurePair {
  std::string_view question, engine, truth;
  std::string_view suite = {};  // cases of other suites do not show the pair; empty: all do
  bool is_verdict = false;      // the truth stands beside every verdict on the engine's figure
};

// A figure that a page draws over several runs.
struct HistoryFigure {
  std::string_view name, label, caption;
  bool bytes = false, from_zero = false;
};

// How reports show an engine's cases. The engine's own tools write the same rows and lines.
struct EngineReport {
  std::string_view title;                     // of summary.md
  std::span<const std::string_view> columns;  // the table of true figures in summary.md
  std::span<const FigurePair> pairs;
  std::span<const HistoryFigure> history;
  std::span<const std::string_view> remarks;  // on how to read the engine's own summary.json
  Json (*row)(const CaseResult& result, const OutputNames& outputs);  // null: not measured
  std::string (*line)(const Json& row);   // the row as summary.md shows it
  CaseView (*read_row)(const Json& row);  // a row of the engine's own summary.json
};

// What a case can be sized to.
struct DataSize {
  uint64_t layers = 0, prompt_tokens = 0, tokens = 0;  // of the whole cache; the prompt is shorter
  bool has_attention = false;                          // queries or probabilities were recorded
};

// A case without rules whose parameters fit some data, and what it asks in a sentence.
struct SizedCase {
  CaseSpec spec;
  std::string_view question;
};

// What the gate must know of an engine. The program has a table of engines; everything else that
// the gate does with one goes through these members.
struct Engine {
  std::string_view name;
  std::span<const std::string_view> runtimes;  // that a case may be replayed on; the first: unless
                                               // the case says otherwise
  std::span<const std::string_view> modes;
  std::string_view mode_param;  // the parameter that says the mode too
  std::span<const ParamInfo> params;
  std::span<const MetricInfo> metrics;           // besides OwnMetrics()
  std::span<const DeltaRule> baseline_rules;     // where a config has none
  std::span<const SuiteInfo> suites;             // the first: unless a case says otherwise
  std::span<const std::string_view> case_names;  // of all suites, in their order
  // One of `case_names` with its suite, mode, parameters and rules.
  CaseSpec (*suite_case)(std::string_view name);
  std::vector<Rule> (*rules_of)(std::string_view mode);         // where a config has none
  std::vector<SizedCase> (*sized_cases)(const DataSize& size);  // for a first config
  bool (*compresses)(const CaseSpec& spec);
  // Replays a case and measures every figure that a replay can know. Judges no rule.
  CaseResult (*replay)(const CaseSpec& spec, const Subject& subject, Progress* progress);
  std::vector<std::string_view> (*log_options)();  // names for LogsInput::options
  // Throws kOpenFailed, kBadText, kLimit, kMissingRecord (nothing to judge), kUsage (options).
  LogsRead (*read_logs)(const LogsInput& input);
  EngineReport report;
};

// Returns what a report shows beside a verdict on this figure, such as " (measured_ratio 1.27)".
// The caller looks up the `truth`, the figure that answers the question. Empty for figures without
// one.
std::string Beside(const EngineReport& report, std::string_view metric,
                   const std::function<std::optional<double>(std::string_view truth)>& figure);
// Visits the suites of all engines in their order.
void ForEachSuite(Engines engines, const std::function<void(const SuiteInfo&)>& visit);
// The key of a summary that counts the suite's cases.
std::string CountKey(const SuiteInfo& suite);
// Every figure that a rule can name: the gate's own, then the engines'.
std::vector<const MetricInfo*> Metrics(Engines engines);
// By its name or its word. Null: no such figure.
const MetricInfo* FindMetric(Engines engines, std::string_view name);
// A nameless case of the engine, in its first suite.
CaseSpec NewCase(const Engine& engine);
// A case of an engine's suite; nothing for other names.
std::optional<CaseSpec> FindSuiteCase(Engines engines, std::string_view name);
// The engine that has this runtime; null for other names.
const Engine* FindRuntime(Engines engines, std::string_view runtime);

}  // namespace kv::gate
