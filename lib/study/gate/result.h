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

// Of the worst row. A ratio that nothing was measured for is absent.
struct LayerFigures {
  uint32_t layer = 0;
  std::optional<double> k_ratio, v_ratio;  // lossless, of verified bytes
  std::optional<double> ratio;             // of K and V, where engine logs do not tell them apart
  std::optional<double> attention_error;   // mean over steps
};

struct ResidentSample {
  uint64_t token = 0, bytes = 0;
};

// One row of the original's table: one prompt length, decoded to the end of the cache.
struct RowFigures {
  uint64_t prompt_tokens = 0, decode_tokens = 0;
  double lossy_ratio = 1, lossless_ratio = 1;  // as the engine reports them
  double whole_model_ratio = 1;                // what they hide
  std::optional<double> measured_ratio;
  std::optional<double> attention_error_mean;
};

enum class Origin { kNone, kReplay, kLogs, kCompare };
std::string_view Name(Origin origin);

// A case that the engine ran: the row that the original writes of it, and what its logs really say.
struct LogFigures {
  Json row, true_figures;
};

struct CaseResult {
  CaseSpec spec;
  Origin origin = Origin::kNone;
  Status status = Status::kNotRun;
  std::string reason;  // why it failed or was not run
  std::vector<RuleOutcome> rules;
  Measurements measured;
  Noise noise;  // of speeds over this case's snapshot
  std::vector<RowFigures> rows;
  std::vector<LayerFigures> layers;
  std::vector<ResidentSample> resident_over_time;
  std::vector<std::string> warnings;
  std::optional<LogFigures> logs;  // of engine logs
  std::string snapshot_hash;       // of its source; empty without one
  std::optional<Json> reference;   // how the cache differs from it, by layer

  const RuleOutcome* first(Status status) const;  // null without any
  const RuleOutcome* first_failure() const { return first(Status::kFail); }
};

// Where this run's files go, as given; empty: not written.
struct OutputNames {
  std::string summary_json, summary_md, cases_jsonl;
};

struct GateResult {
  Engines engines;
  std::vector<CaseResult> cases;
  std::optional<Baseline> baseline;
  std::vector<std::string> missing_cases;      // of the baseline, not in this run
  std::vector<std::string> baseline_problems;  // why it says nothing about this run, or less
  std::vector<std::string> reasons, warnings;  // of the verdict, where no rule explains it
  std::optional<Json> engine_logs;             // what they say of the whole suite

  uint64_t count(Status status) const;
  // Of the case where equal baselines differ most; null without any.
  const Noise* worst_noise() const;
  bool failed() const { return !reasons.empty() || count(Status::kFail) > 0; }
  // What is inconclusive never passes, not even where it only warns.
  bool passed() const { return !failed() && count(Status::kInconclusive) == 0; }
  std::string_view verdict() const;  // "pass", "fail", "inconclusive"
  std::string reason() const;        // all reasons in one line
};

// A case that will not be run.
CaseResult NotRun(CaseSpec spec, std::string reason);

}  // namespace kv::gate
