// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/snapshot/diff.h"
#include "lib/study/gate/cases.h"
#include "lib/study/gate/json.h"

namespace kv::gate {

struct BaselineCase {
  std::map<std::string, double, std::less<>> figures;  // without the unknown ones
  std::string origin;                                  // such as "replay"; empty if not stated
  bool passed = false, failed = false;
  std::vector<std::string> snapshot_hashes;  // the older run may state one, or the same twice
  bool states_trace = false;  // true if it records which trace it used, or that it had none
  std::string trace_hash;     // empty without a trace
  // Parameters and lengths that a replay ran with, as JSON texts.
  std::map<std::string, std::string> settings;
};

// An older summary.json, as far as this run is compared with it.
struct Baseline {
  std::string file;
  std::string generated_at, verdict, commit, version;
  bool is_ours = false;  // written by kvtool, not by the engine's suite
  bool passed = false;   // the summary says so, and no case of it failed
  bool is_pinned = false;
  std::map<std::string, BaselineCase, std::less<>> cases;

  // Facts about this run.
  std::vector<std::string> missing_cases = {};  // cases of the baseline that this run lacks
  std::vector<std::string> problems = {};       // why the baseline says little or nothing here
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
  double lossy_ratio = 1, lossless_ratio = 1;  // as the engine reports them
  double whole_model_ratio = 1;                // the ratio that those two hide
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
  std::string reason;  // why it failed, was not run or is inconclusive
  std::vector<RuleOutcome> rules;
  Measurements measured;
  Noise noise;  // of speeds, over this case's snapshot
  std::vector<RowFigures> rows;
  std::vector<LayerFigures> layers;
  std::vector<ResidentSample> resident_over_time;
  std::vector<std::string> warnings;
  std::optional<LogFigures> logs;         // if the case comes from engine logs
  std::string snapshot_hash;              // of the snapshot's files; empty without one
  std::string trace_hash;                 // of the trace's files; empty without one
  std::optional<SnapshotDiff> reference;  // how the cache differs from its reference

  const RuleOutcome* first(Status status) const;  // null if no rule has this status
  const RuleOutcome* first_failure() const { return first(Status::kFail); }
};

// The paths of this run's outputs, as given. Outputs with an empty path are not written.
struct OutputNames {
  std::string summary_json, summary_md, cases_jsonl;
};

struct GateResult {
  const Engine* engine = nullptr;  // whose cases, figures and reports these are
  std::string commit;  // what this run measures, in the words of its caller; may be empty
  std::vector<CaseResult> cases;
  // The last run, and one that stays the same from run to run: small steps add up against it.
  std::optional<Baseline> baseline, pinned;
  std::vector<std::string> reasons, warnings;  // of a verdict that no rule explains
  std::optional<Value> engine_logs;            // what logs say about the whole suite
  bool starts_baseline = false;  // no rule judges its logs: later runs compare with it

  uint64_t count(Status status) const;
  uint64_t count(const SuiteInfo& suite) const;
  // The noise of the case whose equal baselines differ most; null if none was measured.
  const Noise* worst_noise() const;
  bool failed() const { return !reasons.empty() || count(Status::kFail) > 0; }
  // A gate with an inconclusive case never passes, even if the case only warns.
  bool passed() const { return !failed() && count(Status::kInconclusive) == 0; }
  std::string_view verdict() const;  // "pass", "fail", "inconclusive"
  std::string reason() const;        // all reasons, on one line
};

// Makes the result of a case that will not be run.
CaseResult NotRun(CaseSpec spec, std::string reason);

// Takes the case of this name out of the logs' cases. If the config gives rules of its own, these
// replace the thresholds, but not the engine's evidence. Nothing if the logs have no such case.
std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs);

// Removes the case likewise, and adds the outcomes of its rules to those of a replayed case. `path`
// is the place of the logs.
void AddFromLogs(const CaseSpec& spec, std::string_view path, std::vector<CaseResult>& of_logs,
                 CaseResult& replayed);

// The words as one line for a shell.
std::string ShellLine(const std::vector<std::string>& words);

// Gives every failed or inconclusive rule the command that runs its case again. `command` has the
// words of this run without its outputs, such as "kvtool", "gate", "gate.json".
void AddReproduction(const std::vector<std::string>& command, GateResult& result);

// The most important rule for a reader: the first failed one, else the first inconclusive one, else
// the narrowest pass. Null if no rule has a margin.
const RuleOutcome* DecidingRule(const CaseResult& result);

}  // namespace kv::gate
