// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kv::gate {
namespace {

constexpr std::pair<Op, std::string_view> kOps[] = {
    {Op::kAtLeast, ">="}, {Op::kAtMost, "<="}, {Op::kAbove, ">"},
    {Op::kBelow, "<"},    {Op::kEqual, "=="},  {Op::kDiffers, "!="},
};

// What is true when the rule is not.
Op Opposite(Op op) {
  switch (op) {
    case Op::kAtLeast:
      return Op::kBelow;
    case Op::kAtMost:
      return Op::kAbove;
    case Op::kAbove:
      return Op::kAtMost;
    case Op::kBelow:
      return Op::kAtLeast;
    case Op::kEqual:
      return Op::kDiffers;
    case Op::kDiffers:
      return Op::kEqual;
  }
  return op;
}

double Margin(double value, Op op, double limit) {
  switch (op) {
    case Op::kAtLeast:
    case Op::kAbove:
      return value - limit;
    case Op::kAtMost:
    case Op::kBelow:
      return limit - value;
    case Op::kEqual:
      return -std::abs(value - limit);
    case Op::kDiffers:
      return std::abs(value - limit);
  }
  return 0;
}

// A difference in speed that equal runs show as well is no difference: it keeps no rule, and where
// a config asked for the rule it breaks it no more surely.
void JudgeSpeed(const Rule& rule, double value, const Noise* noise, RuleOutcome& outcome) {
  const std::optional<double> relative = noise == nullptr ? std::nullopt : noise->relative();
  outcome.status = Status::kNotRun;
  if (!relative) {
    outcome.reason = "the noise of repeated baselines was not measured";
  } else if (noise->seconds < kLeastSeconds) {
    outcome.reason =
        fmt::format("a replay shorter than {:.0f} ms is not timed", 1e3 * kLeastSeconds);
  } else if (std::abs(value) > *relative) {
    outcome.status = Holds(value, rule.op, rule.limit) ? Status::kPass : Status::kFail;
  } else {
    outcome.reason =
        fmt::format("a difference of {:.2f}% is within the noise of {} equal baselines, {:.2f}%",
                    100 * value, noise->baseline_tps.size(), 100 * *relative);
    if (rule.implied || Holds(value, rule.op, rule.limit)) return;
    outcome.status = Status::kInconclusive;
    outcome.reason += "; 'repeat' of the case asks for more of them";
  }
}

// Passes if every value of the range keeps the rule, and fails if none does.
Status JudgeRange(const Rule& rule, const FigureRange& range) {
  const bool is_exact = rule.op == Op::kEqual || rule.op == Op::kDiffers;
  const bool inside = range.least < rule.limit && rule.limit < range.most;
  const bool holds = Holds(range.least, rule.op, rule.limit);
  if (holds != Holds(range.most, rule.op, rule.limit) || (is_exact && inside)) {
    return Status::kInconclusive;
  }
  return holds ? Status::kPass : Status::kFail;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Spread(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return (*high - *low) / Median(values);
}

}  // namespace

std::string_view Name(Op op) {
  return std::find_if(std::begin(kOps), std::end(kOps),
                      [&](const auto& o) { return o.first == op; })
      ->second;
}

std::optional<Op> ParseOp(std::string_view text) {
  for (const auto& [op, name] : kOps) {
    if (name == text) return op;
  }
  return std::nullopt;
}

bool Holds(double value, Op op, double limit) {
  switch (op) {
    case Op::kAtLeast:
      return value >= limit;
    case Op::kAtMost:
      return value <= limit;
    case Op::kAbove:
      return value > limit;
    case Op::kBelow:
      return value < limit;
    case Op::kEqual:
      return value == limit;
    case Op::kDiffers:
      return value != limit;
  }
  return false;
}

std::string_view Name(Status status) {
  switch (status) {
    case Status::kPass:
      return "pass";
    case Status::kFail:
      return "fail";
    case Status::kNotRun:
      return "not_run";
    case Status::kInconclusive:
      return "inconclusive";
  }
  return "not_run";
}

std::string_view Text(Status status) {
  return status == Status::kNotRun ? "not run" : Name(status);
}

double RuleOutcome::slack() const {
  const bool says_something = margin && !rule.is_flag && !std::isnan(rule.limit) && rule.limit != 0;
  return says_something ? *margin / std::abs(rule.limit) : HUGE_VAL;
}

double Noise::baseline() const { return Median(baseline_tps); }
double Noise::candidate() const { return Median(candidate_tps); }

std::optional<double> Noise::relative() const {
  if (baseline_tps.size() < 2 || !(baseline() > 0)) return std::nullopt;
  if (candidate_tps.size() < 2 || !(candidate() > 0)) return Spread(baseline_tps);
  return std::max(Spread(baseline_tps), Spread(candidate_tps));
}

RuleOutcome Evaluate(const Rule& rule, const Measurements& measured, const Noise* noise) {
  RuleOutcome outcome;
  outcome.rule = rule;
  const Measurement* measurement = measured.Find(rule.metric);
  if (measurement == nullptr || !measurement->value) {
    outcome.reason = measurement == nullptr ? "not measured in this case" : measurement->reason;
    const bool is_undefined = measurement != nullptr && measurement->undefined;
    outcome.status = rule.required || is_undefined ? Status::kFail : Status::kNotRun;
    if (rule.required && !is_undefined)
      outcome.reason = "required, but not known: " + outcome.reason;
    return outcome;
  }
  const double value = *measurement->value;
  outcome.value = value;
  outcome.where = measurement->where;
  if (!rule.is_flag) outcome.margin = Margin(value, rule.op, rule.limit);
  if (rule.metric == "attention_drop_ratio") {
    JudgeSpeed(rule, value, noise, outcome);
    if (!outcome.reason.empty()) return outcome;
  } else if (measurement->range) {
    outcome.status = JudgeRange(rule, *measurement->range);
    if (outcome.status != Status::kPass) outcome.reason = measurement->range->why;
    return outcome;
  } else {
    outcome.status = Holds(value, rule.op, rule.limit) ? Status::kPass : Status::kFail;
  }
  if (outcome.status == Status::kFail) outcome.reason = measurement->reason;
  return outcome;
}

std::string NumberText(double value, bool is_flag) {
  if (std::isnan(value)) return "no limit";
  if (is_flag) return value != 0 ? "true" : "false";
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

std::string Text(const RuleOutcome& outcome) {
  const Rule& rule = outcome.rule;
  if (std::isnan(rule.limit)) return rule.shown();  // a rule in words: its reason says it all
  const std::string limit = NumberText(rule.limit, rule.is_flag);
  if (!outcome.value)
    return fmt::format("{} unknown, {} {} asked", rule.shown(), Name(rule.op), limit);
  const bool holds = Holds(*outcome.value, rule.op, rule.limit);
  const Op op = holds ? rule.op : Opposite(rule.op);
  return fmt::format("{} {} {} {}", rule.shown(), NumberText(*outcome.value, rule.is_flag),
                     Name(op), limit);
}

}  // namespace kv::gate
