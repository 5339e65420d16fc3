// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/core/snapshot/diff.h"
#include "lib/study/gate/log_files.h"
#include "lib/study/gate/rules.h"

namespace kv::gate {

// A parameter of an engine under the engine's name for it, as a config gives it. The engine clamps
// numbers; words are checked here, because an engine may take a typo for its default.
using ParamValue = std::variant<double, std::string>;
using Params = std::vector<std::pair<std::string, ParamValue>>;

struct ParamInfo {
  std::string_view name;
  std::string_view words = {};        // the permitted words, between bars; "*": any list of words
  std::optional<uint64_t> most = {};  // an upper limit that is a whole number
  std::string_view word = {};         // engine-neutral name that a config may use
};
// Finds a parameter by either name.
const ParamInfo* FindParam(std::span<const ParamInfo> known, std::string_view name);

// Sets a parameter. A new value replaces the old one in its place.
void Assign(std::string_view name, ParamValue value, Params& params);
void Merge(const Params& over, Params& params);
const ParamValue* Find(const Params& params, std::string_view name);
// Returns true if a switch is on; one that is not set counts as on.
bool IsOn(const Params& params, std::string_view name);
double NumberOr(const Params& params, std::string_view name, double fallback);

// Options for reading a snapshot. Each member has the meaning of the flag of the same name.
struct Reading {
  std::string from, gguf;
  uint32_t kv_heads = 0, head_dim = 0;
};

// Permitted distance of values from the reference's. Without it every stored bit must be equal.
struct Tolerance {
  using OfBoth = std::array<std::optional<double>, 2>;  // K, V
  OfBoth all = {};
  std::vector<std::pair<uint32_t, OfBoth>> layers = {};  // these layers differ from `all`

  std::optional<double> Of(uint32_t layer, bool is_value) const;
};

// Types in which to store the cache: names of lib/study/quantisation/types.
struct QuantTypes {
  std::string k, v;
};

// The consequence of an undecided case.
enum class OnNotRun { kFail, kWarn };

// CaseSpec is one case of the gate, ready to run.
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
  std::optional<QuantTypes> quant;        // requests the figures quant.*
  std::string runtime;                    // one of the engine's runtimes; empty: the first of them
  std::vector<uint64_t> prompt_tokens;    // one table row each; empty: the prompt of the trace
  std::optional<uint64_t> decode_tokens;  // steps of each row; empty: to the end of the cache
  uint64_t repeat = 5;  // number of equal baselines that measure the noise of speeds
  Params params;        // rules that override those of the engine's mode
  std::vector<Rule> rules;
  bool own_rules = false;  // the config gives the rules, not the engine
  OnNotRun on_not_run = OnNotRun::kFail;
};

// The mode of a case that is only compared with its reference.
inline constexpr std::string_view kCompare = "compare";
// The mode of a case whose cache is only stored in other types.
inline constexpr std::string_view kQuant = "quant";
inline bool OnlyCompares(const CaseSpec& spec) { return spec.mode == kCompare; }

// Adds the rules of a case with a reference: the same layers, and no value beyond the tolerance
// unless its own rules limit the distance in other figures. Any figure that a rule on the reference
// names becomes required.
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
  std::string_view suite = {};  // only cases of this suite show the pair; empty: all do
  bool is_verdict = false;      // shown beside each verdict on the engine's figure
};

// A figure that a page draws over several runs.
struct HistoryFigure {
  std::string_view name, label, caption;
  bool bytes = false, from_zero = false;
};

// Describes how reports show an engine's cases: with the rows and lines that the engine's own tools
// write.
struct EngineReport {
  std::string_view title;                     // title of summary.md
  std::span<const std::string_view> columns;  // the table of true figures in summary.md
  std::span<const FigurePair> pairs;
  std::span<const HistoryFigure> history;
  std::span<const std::string_view> remarks;  // about the engine's own summary.json
  // The row of a replayed case, in which unmeasured figures are null, and its schema.
  Value (*row)(const CaseResult& result, const OutputNames& outputs);
  Value (*row_schema)();
  Value::Object (*log_figures)();  // schemas of true figures that only logs have
  Value (*logs_schema)();          // what logs say about a whole suite
  std::string (*line)(const nlohmann::ordered_json& row);   // the row as summary.md shows it
  CaseView (*read_row)(const nlohmann::ordered_json& row);  // a row of its own summary.json
};

// Everything that configs can name and reports show for one engine: its suite, runtimes, parameters
// and figures. The program passes it in.
struct Engine {
  std::string_view name;
  std::span<const std::string_view> runtimes;  // runtimes for replays; the first is the default
  std::span<const std::string_view> modes;
  std::string_view mode_param;    // the parameter that states the mode a second time
  std::string_view switch_param;  // the parameter that switches compression on
  std::span<const ParamInfo> params;
  std::span<const MetricInfo> metrics;           // the engine's alone, beside OwnMetrics()
  std::span<const DeltaRule> baseline_rules;     // rules on baselines, if a config has none
  std::span<const SuiteInfo> suites;             // the first is the default of a case
  std::span<const std::string_view> case_names;  // names of the cases of all suites, in their order
  // Returns one of `case_names` with its suite, mode, parameters and rules.
  CaseSpec (*suite_case)(std::string_view name);
  std::vector<Rule> (*rules_of)(std::string_view mode);  // rules of a mode, if a config has none
  EngineReport report;

  // Returns every figure that a rule can name: the gate's own, then the engine's.
  std::vector<const MetricInfo*> Metrics() const;
  // Finds a figure by its name or its word; null if there is none.
  const MetricInfo* FindMetric(std::string_view name) const;
  // Returns a case of the first suite, still without a name.
  CaseSpec NewCase() const;
  // Returns nothing for a name that no suite has.
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

// Requires that decoded bytes equal their source, unless a rule of the case already does or the
// case compresses nothing.
void RequireContent(const Engine& engine, CaseSpec& spec);

// Returns what a report shows beside a verdict on this figure, such as " (measured_ratio 1.27)".
// The caller looks up `truth`, kvtool's figure. Empty for figures without one.
std::string Beside(const EngineReport& report, std::string_view metric,
                   const std::function<std::optional<double>(std::string_view truth)>& figure);

struct BaselineCase {
  std::map<std::string, double, std::less<>> figures;  // the known figures
  std::string origin;                                  // such as "replay"; empty if not stated
  bool passed = false, failed = false;
  std::vector<std::string> snapshot_hashes;  // the snapshot's hash, once or twice, or none
  bool states_trace = false;  // true if it records which trace was used, or that none was
  std::string trace_hash;     // empty without a trace
  // Parameters and lengths that a replay ran with, as JSON texts.
  std::map<std::string, std::string> settings;
};

// The parts of an older summary.json that are compared with this run.
struct Baseline {
  std::string file;
  std::string generated_at, verdict, commit, version;
  bool is_ours = false;  // written by kvtool, not by the engine's suite
  bool passed = false;   // the summary states so, and no case of it failed
  bool is_pinned = false;
  std::map<std::string, BaselineCase, std::less<>> cases;

  // Facts about this run.
  std::vector<std::string> missing_cases = {};  // cases of the baseline that this run lacks
  std::vector<std::string> problems = {};       // why the baseline proves little or nothing here
};

// Figures of one layer in the worst row. A ratio that was not measured is absent.
struct LayerFigures {
  uint32_t layer = 0;
  std::optional<double> k_ratio, v_ratio;  // lossless ratios of verified bytes
  std::optional<double> ratio;             // K and V together, if engine logs do not separate them
  std::optional<double> attention_error;   // mean over the steps
};

struct ResidentSample {
  uint64_t token = 0, bytes = 0;
};

// One row of the engine's table: one prompt length, decoded to the end of the cache.
struct RowFigures {
  uint64_t prompt_tokens = 0, decode_tokens = 0;
  double lossy_ratio = 1, lossless_ratio = 1;  // the ratios that the engine reports
  double whole_model_ratio = 1;                // the ratio of the whole model, which those two hide
  std::optional<double> measured_ratio;
  std::optional<double> attention_error_mean;
};

enum class Origin { kNone, kReplay, kLogs, kCompare };
std::string_view Name(Origin origin);

// For a case that the engine ran: the row that its tools write, and kvtool's reading of its logs.
struct LogFigures {
  Json row, true_figures;
};

struct CaseResult {
  CaseSpec spec;
  Origin origin = Origin::kNone;
  Status status = Status::kNotRun;
  std::string reason;  // why the case failed, was not run or is inconclusive
  std::vector<RuleOutcome> rules;
  Measurements measured;
  Noise noise;  // noise of speeds, over this case's snapshot
  std::vector<RowFigures> rows;
  std::vector<LayerFigures> layers;
  std::vector<ResidentSample> resident_over_time;
  std::vector<std::string> warnings;
  std::optional<LogFigures> logs;         // set if the case comes from engine logs
  std::string snapshot_hash;              // hash of the snapshot's files; empty without one
  std::string trace_hash;                 // hash of the trace's files; empty without one
  std::optional<SnapshotDiff> reference;  // differences of the cache from its reference

  const RuleOutcome* first(Status status) const;  // null if no rule has this status
  const RuleOutcome* first_failure() const { return first(Status::kFail); }
};

// The paths of this run's outputs, as given. Outputs with an empty path are not written.
struct OutputNames {
  std::string summary_json, summary_md, cases_jsonl;
};

struct GateResult {
  const Engine* engine = nullptr;  // its cases, figures and reports are judged
  std::string commit;  // the version that this run measures, as its caller names it; may be empty
  std::vector<CaseResult> cases;
  // The last run, and a pinned one that stays the same, so that small regressions add up.
  std::optional<Baseline> baseline, pinned;
  std::vector<std::string> reasons, warnings;  // about the run, not from one rule
  std::optional<Value> engine_logs;            // figures of the whole suite that logs state
  bool starts_baseline = false;  // no rule judges its logs: later runs are compared with it

  uint64_t count(Status status) const;
  uint64_t count(const SuiteInfo& suite) const;
  // Returns the noise of the case whose equal baselines differ most; null if none was measured.
  const Noise* worst_noise() const;
  bool failed() const { return !reasons.empty() || count(Status::kFail) > 0; }
  // A gate with an inconclusive case never passes, even if the case only warns.
  bool passed() const { return !failed() && count(Status::kInconclusive) == 0; }
  std::string_view verdict() const;  // "pass", "fail", "inconclusive"
  std::string reason() const;        // all reasons, on one line
};

// Makes the result of a case that will not be run.
CaseResult NotRun(CaseSpec spec, std::string reason);

// Removes the case of this name from the logs' cases and returns it. Rules in the config replace
// the thresholds, but not the engine's evidence. Returns nothing if the logs have no such case.
std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs);

// Removes the case of this name as TakeCase does, and adds the outcomes of its rules to those of a
// replayed case. `path` is the place of the logs.
void AddFromLogs(const CaseSpec& spec, std::string_view path, std::vector<CaseResult>& of_logs,
                 CaseResult& replayed);

// Returns the words as one line for a shell.
std::string ShellLine(const std::vector<std::string>& words);

// Gives every failed or inconclusive rule the command that runs its case again. `command` has the
// words of this run without its outputs, such as "kvtool", "gate", "gate.json".
void AddReproduction(const std::vector<std::string>& command, GateResult& result);

// The most important rule for a reader: the first failed one, else the first inconclusive one, else
// the narrowest pass. Null if no rule has a margin.
const RuleOutcome* DecidingRule(const CaseResult& result);

}  // namespace kv::gate
