// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/study/gate/rules.h"

namespace kv::gate {

// A parameter of an engine under the engine's name for it, as a config gives it. The engine clamps
// numbers; words are checked here, because an engine may take a typo for its default.
using ParamValue = std::variant<double, std::string>;
using Params = std::vector<std::pair<std::string, ParamValue>>;

struct ParamInfo {
  std::string_view name;
  std::string_view words = {};  // the words that it takes, between bars; "*": any list of words
  std::optional<uint64_t> most = {};  // a whole number that must not be larger
  std::string_view word = {};         // engine-neutral name that a config may use
};
// Finds it by either name.
const ParamInfo* FindParam(std::span<const ParamInfo> known, std::string_view name);

// Sets a parameter. A new value replaces the old one in its place.
void Assign(std::string_view name, ParamValue value, Params& params);
void Merge(const Params& over, Params& params);
const ParamValue* Find(const Params& params, std::string_view name);
// Returns true if a switch is on; one that is not set counts as on.
bool IsOn(const Params& params, std::string_view name);
double NumberOr(const Params& params, std::string_view name, double fallback);

// How to read a snapshot. Each member has the meaning of the flag of the same name.
struct Reading {
  std::string from, gguf;
  uint32_t kv_heads = 0, head_dim = 0;
};

// Permitted distance of values from the reference's. Without a tolerance every stored bit must be
// equal.
struct Tolerance {
  using OfBoth = std::array<std::optional<double>, 2>;  // K, V
  OfBoth all = {};
  std::vector<std::pair<uint32_t, OfBoth>> layers = {};  // these layers differ from `all`

  std::optional<double> Of(uint32_t layer, bool is_value) const;
};

// Types in which the cache would be kept: names of lib/study/quantisation/types.
struct QuantTypes {
  std::string k, v;
};

// The consequence of an undecided case.
enum class OnNotRun { kFail, kWarn };

// One case of the gate, ready to run.
struct CaseSpec {
  std::string name;
  std::string suite;         // one of the engine's suites
  std::string mode;          // one of the engine's modes, kCompare or kQuant
  bool only_engine = false;  // only the engine can run it, not a replay
  std::string snapshot, trace;
  Reading reading;
  std::string reference;  // a cache that this one must equal; may be empty
  std::string reference_from;
  Tolerance tolerance;
  std::optional<QuantTypes> quant;        // figures quant.* are measured
  std::string runtime;                    // one of the engine's; empty: its first
  std::vector<uint64_t> prompt_tokens;    // one row each; if empty, the trace says
  std::optional<uint64_t> decode_tokens;  // of each row; nothing: to the end of the cache
  uint64_t repeat = 5;  // equal baselines that are run to find the noise of speeds
  Params params;        // rules that override those of the engine's mode
  std::vector<Rule> rules;
  bool own_rules = false;  // given by the config, not by the engine
  OnNotRun on_not_run = OnNotRun::kFail;
};

// The mode of a case that is compared with its reference and not replayed.
inline constexpr std::string_view kCompare = "compare";
// The mode of a case whose cache is stored in other types, and neither compared nor replayed.
inline constexpr std::string_view kQuant = "quant";
inline bool OnlyCompares(const CaseSpec& spec) { return spec.mode == kCompare; }

// Adds the rules that a case with a reference has: the same layers, and no value beyond the
// tolerance unless its own rules limit the distance in other figures. Any figure that a rule on the
// reference names becomes required.
void RequireReference(CaseSpec& spec);

struct CaseResult;
struct CaseView;
struct OutputNames;

// A group of an engine's cases, its heading in summary.md, and the key of a summary that counts its
// cases.
struct SuiteInfo {
  std::string_view name, heading, count_key;
};

// A figure as the engine defines it, and kvtool's figure for the same question.
struct FigurePair {
  std::string_view question, engine, truth;
  std::string_view suite = {};  // cases of other suites do not show the pair; empty: all do
  bool is_verdict = false;      // shown beside every verdict on the engine's figure
};

// A figure that a page draws over several runs.
struct HistoryFigure {
  std::string_view name, label, caption;
  bool bytes = false, from_zero = false;
};

// A table of how reports show an engine's cases. The engine's own tools write the same rows and
// lines.
struct EngineReport {
  std::string_view title;                     // of summary.md
  std::span<const std::string_view> columns;  // the table of true figures in summary.md
  std::span<const FigurePair> pairs;
  std::span<const HistoryFigure> history;
  std::span<const std::string_view> remarks;  // on how to read the engine's own summary.json
  // The row of a replayed case, in which null is not measured, and its schema.
  Value (*row)(const CaseResult& result, const OutputNames& outputs);
  Value (*row_schema)();
  Value::Object (*log_figures)();  // schemas of the true figures that only logs have
  Value (*logs_schema)();          // what logs say about a whole suite
  std::string (*line)(const nlohmann::ordered_json& row);   // the row as summary.md shows it
  CaseView (*read_row)(const nlohmann::ordered_json& row);  // a row of its own summary.json
};

// Everything that configs can name and reports show for one engine: its suite, runtimes, parameters
// and figures. The program passes it in.
struct Engine {
  std::string_view name;
  std::span<const std::string_view> runtimes;  // that a case may be replayed on; the first: unless
                                               // the case says otherwise
  std::span<const std::string_view> modes;
  std::string_view mode_param;    // the parameter that says the mode too
  std::string_view switch_param;  // the parameter without which nothing is compressed
  std::span<const ParamInfo> params;
  std::span<const MetricInfo> metrics;           // besides OwnMetrics()
  std::span<const DeltaRule> baseline_rules;     // where a config has none
  std::span<const SuiteInfo> suites;             // the first: unless a case says otherwise
  std::span<const std::string_view> case_names;  // of all suites, in their order
  // One of `case_names` with its suite, mode, parameters and rules.
  CaseSpec (*suite_case)(std::string_view name);
  std::vector<Rule> (*rules_of)(std::string_view mode);  // where a config has none
  EngineReport report;

  // Every figure that a rule can name: the gate's own, then the engine's.
  std::vector<const MetricInfo*> Metrics() const;
  // Finds a figure by its name or its word; null if there is none.
  const MetricInfo* FindMetric(std::string_view name) const;
  // A nameless case in the first suite.
  CaseSpec NewCase() const;
  // Does nothing for other names.
  std::optional<CaseSpec> FindSuiteCase(std::string_view name) const;
};

// Makes distinct names for cases, with room for a suffix.
class CaseNames {
 public:
  // Returns the name, cut to 150 bytes; with "-2" or a later number if a case has it already.
  std::string Add(std::string_view name);

 private:
  std::set<std::string> taken_;
};

// Requires that decoded bytes equal their source, unless a rule of the case already speaks of that
// or the case compresses nothing.
void RequireContent(const Engine& engine, CaseSpec& spec);

// Returns what a report shows beside a verdict on this figure, such as " (measured_ratio 1.27)".
// The caller looks up `truth`, kvtool's figure. Empty for figures without one.
std::string Beside(const EngineReport& report, std::string_view metric,
                   const std::function<std::optional<double>(std::string_view truth)>& figure);

}  // namespace kv::gate
