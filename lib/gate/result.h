// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/gate/baseline.h"
#include "lib/gate/cases.h"
#include "lib/gate/metrics.h"
#include "lib/gate/rules.h"

namespace kv::gate {

using Json = nlohmann::ordered_json;

// Of the worst row. A ratio that nothing was measured for is absent.
struct LayerFigures {
  uint32_t layer = 0;
  std::optional<double> k_ratio, v_ratio;  // lossless, of verified bytes
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

enum class Origin { kNone, kReplay, kEngineLogs };
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

  const RuleOutcome* first_failure() const;
};

struct GateResult {
  std::vector<CaseResult> cases;
  std::optional<Baseline> baseline;
  std::vector<std::string> missing_cases;  // of the baseline, not in this run
  std::string reason;                      // of a failed verdict that no rule explains
  std::optional<Json> engine_logs;         // what they say of the whole suite

  uint64_t count(Status status) const;
  // Of the case where equal baselines differ most; null without any.
  const Noise* worst_noise() const;
  bool passed() const { return reason.empty() && count(Status::kFail) == 0; }
};

// A case that will not be run.
CaseResult NotRun(CaseSpec spec, std::string reason);

// Evaluates the rules of every case, those against the baseline included, and sets each status:
// failed by any rule, passed by one at least, else not run. Outcomes that a case already has, those
// of engine logs, count too. A gate where no case was decided fails.
void Judge(const std::vector<DeltaRule>& delta_rules, GateResult& result);

}  // namespace kv::gate
