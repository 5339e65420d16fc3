// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/study/gate/baseline.h"
#include "lib/study/gate/cases.h"
#include "lib/study/gate/json.h"
#include "lib/study/gate/metrics.h"
#include "lib/study/gate/rules.h"

namespace kv::gate {

// Figures of one layer in the worst row. A ratio that was not measured is absent.
struct LayerFigures {
  uint32_t layer = 0;
  std::optional<double> k_ratio, v_ratio;  // lossless ratios of verified bytes
  std::optional<double> ratio;             // of K and V, where engine logs do not tell them apart
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

// For a case that the engine ran: the row that its tools write, and what its logs really say.
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
  std::optional<LogFigures> logs;  // if the case comes from engine logs
  std::string snapshot_hash;       // of the snapshot's files; empty without one
  std::string trace_hash;          // of the trace's files; empty without one
  std::optional<Json> reference;   // how the cache differs from its reference, by layer

  const RuleOutcome* first(Status status) const;  // null if no rule has this status
  const RuleOutcome* first_failure() const { return first(Status::kFail); }
};

// The paths of this run's outputs, as given. Outputs with an empty path are not written.
struct OutputNames {
  std::string summary_json, summary_md, cases_jsonl;
};

// What a baseline lets one say about this run.
struct BaselineFindings {
  std::vector<std::string> missing_cases;  // cases of the baseline that this run lacks
  std::vector<std::string> problems;       // why the baseline says little or nothing here
};

struct GateResult {
  Engines engines;
  std::string commit;  // what this run measures, in the words of its caller; may be empty
  std::vector<CaseResult> cases;
  // The last run, and one that stays the same from run to run: small steps add up against it.
  std::optional<Baseline> baseline, pinned;
  BaselineFindings of_baseline, of_pinned;
  std::vector<std::string> reasons, warnings;  // of a verdict that no rule explains
  std::optional<Json> engine_logs;             // what logs say of the whole suite

  uint64_t count(Status status) const;
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

}  // namespace kv::gate
