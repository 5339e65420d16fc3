// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/decide.h"

#include <fmt/format.h>

#include <limits>

namespace kv::mnn::logs {
namespace {

std::string Percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

}  // namespace

RuleOutcome NewRule(std::string_view metric, Op op) {
  RuleOutcome rule;
  rule.rule.metric = metric;
  rule.rule.op = op;
  rule.rule.limit = std::numeric_limits<double>::quiet_NaN();
  return rule;
}

RuleOutcome Decide(std::string_view metric, Op op, double limit, const std::optional<double>& value,
                   std::string_view log, std::string_view unlike) {
  RuleOutcome rule = NewRule(metric, op);
  rule.rule.limit = limit;
  rule.value = value;
  rule.where.log = log;
  if (!value) {
    rule.reason = "the logs do not say";
    return rule;
  }
  rule.status = gate::Holds(*value, op, limit) ? Status::kPass : Status::kFail;
  if (rule.status == Status::kFail) rule.reason = unlike;
  return rule;
}

RuleOutcome DecideDrop(std::string_view metric, double limit, const std::optional<double>& drop,
                       const std::optional<double>& noise) {
  RuleOutcome rule = Decide(metric, Op::kAtMost, limit, drop, {}, {});
  if (!drop) return rule;
  const std::string what = *drop >= 0 ? Percent(*drop) + " slower" : Percent(-*drop) + " faster";
  if (!noise) {
    rule.reason = what + "; one baseline, so nothing says how much the speed varies by itself";
  } else if (*drop - *noise > limit) {
    rule.status = Status::kFail;
    rule.reason = fmt::format("{}, noise {}, allowed {}", what, Percent(*noise), Percent(limit));
  } else if (*drop + *noise <= limit) {
    rule.status = Status::kPass;
    rule.reason.clear();
  } else {
    rule.status = *drop > limit ? Status::kInconclusive : Status::kNotRun;
    rule.reason = fmt::format(
        "{}, but the baselines differ by {} without any change: the limit of {} cannot be judged",
        what, Percent(*noise), Percent(limit));
    if (*drop > limit) rule.reason += "; more repeats of the baseline and of the case would decide";
  }
  return rule;
}

}  // namespace kv::mnn::logs
