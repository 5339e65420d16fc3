// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/decide.h"

#include <fmt/format.h>

namespace kv::mnn::logs {
namespace {

std::string Percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

bool Holds(double value, std::string_view op, double limit) {
  if (op == ">=") return value >= limit;
  if (op == ">") return value > limit;
  return value <= limit;
}

}  // namespace

EngineRule Decide(std::string_view metric, Limit limit, const std::optional<double>& value,
                  std::string_view log, std::string_view unlike) {
  EngineRule rule;
  rule.metric = metric;
  rule.op = limit.op;
  rule.limit = limit.value;
  rule.value = value;
  rule.log = log;
  if (!value) {
    rule.reason = "the logs do not say";
    return rule;
  }
  rule.status = Holds(*value, limit.op, limit.value) ? RuleStatus::kPass : RuleStatus::kFail;
  if (rule.status == RuleStatus::kFail) rule.reason = unlike;
  return rule;
}

EngineRule DecideDrop(std::string_view metric, double limit, const std::optional<double>& drop,
                      const std::optional<double>& noise) {
  EngineRule rule = Decide(metric, {"<=", limit}, drop, {}, {});
  if (!drop) return rule;
  const std::string what = *drop >= 0 ? Percent(*drop) + " slower" : Percent(-*drop) + " faster";
  if (!noise) {
    rule.reason = what + "; one baseline, so nothing says how much the speed varies by itself";
  } else if (*drop - *noise > limit) {
    rule.status = RuleStatus::kFail;
    rule.reason = fmt::format("{}, noise {}, allowed {}", what, Percent(*noise), Percent(limit));
  } else if (*drop + *noise <= limit) {
    rule.status = RuleStatus::kPass;
    rule.reason.clear();
  } else {
    rule.status = *drop > limit ? RuleStatus::kInconclusive : RuleStatus::kNotRun;
    rule.reason = fmt::format(
        "{}, but the baselines differ by {} without any change: the limit of "
        "{} cannot be told",
        what, Percent(*noise), Percent(limit));
    if (*drop > limit) rule.reason += "; more repeats of the baseline and of the case would tell";
  }
  return rule;
}

}  // namespace kv::mnn::logs
