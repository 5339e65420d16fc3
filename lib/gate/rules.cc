// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/rules.h"

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

// A difference in speed that repeated equal runs show as well is no difference.
std::string WithinNoise(const Rule& rule, double value, const Noise* noise) {
  if (rule.metric != "attention_drop_ratio") return {};
  const std::optional<double> relative = noise == nullptr ? std::nullopt : noise->relative();
  if (!relative) return "the noise of repeated baselines was not measured";
  if (std::abs(value) > *relative) return {};
  return fmt::format("a difference of {:.2f}% is within the noise of {} equal baselines, {:.2f}%",
                     100 * value, noise->baseline_tps.size(), 100 * *relative);
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
  return status == Status::kPass ? "pass" : status == Status::kFail ? "fail" : "not_run";
}

double Noise::median() const {
  if (baseline_tps.empty()) return 0;
  std::vector<double> sorted = baseline_tps;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

std::optional<double> Noise::relative() const {
  if (baseline_tps.size() < 2 || !(median() > 0)) return std::nullopt;
  const auto [low, high] = std::minmax_element(baseline_tps.begin(), baseline_tps.end());
  return (*high - *low) / median();
}

RuleOutcome Evaluate(const Rule& rule, const Measurements& measured, const Noise* noise) {
  RuleOutcome outcome;
  outcome.rule = rule;
  const Measurement* measurement = measured.Find(rule.metric);
  if (measurement == nullptr || !measurement->value) {
    outcome.reason = measurement == nullptr ? "not measured in this case" : measurement->reason;
    outcome.status = rule.required ? Status::kFail : Status::kNotRun;
    if (rule.required) outcome.reason = "required, but not known: " + outcome.reason;
    return outcome;
  }
  const double value = *measurement->value;
  outcome.value = value;
  outcome.where = measurement->where;
  if (!FindMetric(rule.metric)->is_flag) outcome.margin = Margin(value, rule.op, rule.limit);
  outcome.reason = WithinNoise(rule, value, noise);
  if (!outcome.reason.empty()) return outcome;
  outcome.status = Holds(value, rule.op, rule.limit) ? Status::kPass : Status::kFail;
  return outcome;
}

std::string NumberText(double value, bool is_flag) {
  if (is_flag) return value != 0 ? "true" : "false";
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

std::string Text(const RuleOutcome& outcome) {
  const Rule& rule = outcome.rule;
  const bool is_flag = FindMetric(rule.metric) != nullptr && FindMetric(rule.metric)->is_flag;
  const std::string limit = NumberText(rule.limit, is_flag);
  if (!outcome.value)
    return fmt::format("{} unknown, {} {} asked", rule.metric, Name(rule.op), limit);
  const Op op = outcome.status == Status::kFail ? Opposite(rule.op) : rule.op;
  return fmt::format("{} {} {} {}", rule.metric, NumberText(*outcome.value, is_flag), Name(op),
                     limit);
}

}  // namespace kv::gate
