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
  double limit = 0;       // NaN: the engine's rule has none
  bool required = false;  // a figure that is not known fails the rule
  bool implied = false;   // asked of every replay, by no config: alone it decides nothing
  bool is_flag = false;   // the figure and the limit are true (1) or false (0)
};

// Not run: what was not measured proves nothing. Inconclusive: measured, but no better than to
// within a noise in which the limit lies.
enum class Status { kPass, kFail, kNotRun, kInconclusive };
std::string_view Name(Status status);  // "pass", "fail", "not_run", "inconclusive"
std::string_view Text(Status status);  // "not run", else its name

struct RuleOutcome {
  Rule rule;
  Status status = Status::kNotRun;
  std::optional<double> value;
  // How far inside the limit the value lies, negative outside; nothing for flags.
  std::optional<double> margin;
  std::string reason;  // why not run, or what a reader must know of a verdict
  Where where;
  std::string reproduce;                // a command line, of failed rules
  std::optional<double> baseline = {};  // of a delta rule: the older value
  // Of engine logs: the original's value and verdict, where they may differ.
  std::optional<double> engine_value = {};
  std::optional<bool> engine_pass = {};

  // The margin as a share of the limit; infinite where that says nothing.
  double slack() const;
};

// Speeds of equal replays in turn, without and with the case's parameters: whether two speeds
// differ is known only against the spread of equal ones.
struct Noise {
  std::vector<double> baseline_tps, candidate_tps;
  double seconds = 0;  // of the shortest replay

  // The wider of both spreads, (max - min) / median; nothing from fewer than two runs.
  std::optional<double> relative() const;
  double baseline() const;  // medians
  double candidate() const;
};
// Shorter replays are not timed: a scheduler's tick would decide.
inline constexpr double kLeastSeconds = 0.1;

RuleOutcome Evaluate(const Rule& rule, const Measurements& measured, const Noise* noise = nullptr);

// "lossy_best 1 < 3"
std::string Text(const RuleOutcome& outcome);
std::string NumberText(double value, bool is_flag = false);

}  // namespace kv::gate
