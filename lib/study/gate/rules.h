// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/metrics.h"

namespace kv::gate {

enum class Op { kAtLeast, kAtMost, kAbove, kBelow, kEqual, kDiffers };
std::string_view Name(Op op);  // ">="
std::optional<Op> ParseOp(std::string_view text);
bool Holds(double value, Op op, double limit);

// A threshold on one figure of one case.
struct Rule {
  std::string metric;
  Op op = Op::kAtLeast;
  double limit = 0;       // NaN if a rule of engine logs has none
  bool required = false;  // the rule fails if its figure is not known
  bool implied = false;   // no config asked for the rule, so it alone decides nothing
  bool is_flag = false;   // the figure and the limit are true (1) or false (0)
  std::string word = {};  // what its config calls the metric, where that is another name

  const std::string& shown() const { return word.empty() ? metric : word; }
};

// The status of a rule or a case. Not run means that the figure was not measured, which proves
// nothing. Inconclusive means that it was measured, but the limit lies within its noise.
enum class Status { kPass, kFail, kNotRun, kInconclusive };
std::string_view Name(Status status);  // "pass", "fail", "not_run", "inconclusive"
std::string_view Text(Status status);  // as in a sentence: "not run" instead of "not_run"

struct RuleOutcome {
  Rule rule;
  Status status = Status::kNotRun;
  std::optional<double> value;
  // How far inside the limit the value lies; negative outside, and absent for flags.
  std::optional<double> margin;
  std::string reason;  // why the rule was not run, or what explains its status
  Where where;
  std::string reproduce;                // the command line that shows a failure again
  std::optional<double> baseline = {};  // for a rule against a baseline, the older value
  bool pinned = false;                  // that baseline is the pinned one, not the last
  // For engine logs, the engine's own value and verdict, which may differ.
  std::optional<double> engine_value = {};
  std::optional<bool> engine_pass = {};

  // The margin as a share of the limit; infinite where that says nothing.
  double slack() const;
};

// Speeds of replays that alternate between the baseline and the case's parameters. Only the spread
// of equal replays tells whether two speeds really differ.
struct Noise {
  std::vector<double> baseline_tps, candidate_tps;
  double seconds = 0;  // of the shortest replay

  // The wider of the two spreads, each (max - min) / median; nothing from fewer than two runs.
  std::optional<double> relative() const;
  double baseline() const;  // medians
  double candidate() const;
};
// Shorter replays are not judged by their time, because a scheduler's tick would decide.
inline constexpr double kLeastSeconds = 0.1;

// Judges a rule by its figure. Rules on speed need `noise`.
RuleOutcome Evaluate(const Rule& rule, const Measurements& measured, const Noise* noise = nullptr);

// Writes an outcome such as "lossy_best 1 < 3".
std::string Text(const RuleOutcome& outcome);
std::string NumberText(double value, bool is_flag = false);

}  // namespace kv::gate
