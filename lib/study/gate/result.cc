// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/result.h"

#include <algorithm>

namespace kv::gate {

std::string_view Name(Origin origin) {
  return origin == Origin::kReplay    ? "replay"
         : origin == Origin::kLogs    ? "engine_logs"
         : origin == Origin::kCompare ? "compare"
                                      : "none";
}

const RuleOutcome* CaseResult::first(Status status) const {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const RuleOutcome& rule) { return rule.status == status; });
  return found == rules.end() ? nullptr : &*found;
}

uint64_t GateResult::count(Status status) const {
  return static_cast<uint64_t>(
      std::count_if(cases.begin(), cases.end(),
                    [&](const CaseResult& result) { return result.status == status; }));
}

const Noise* GateResult::worst_noise() const {
  const Noise* worst = nullptr;
  for (const CaseResult& item : cases) {
    const std::optional<double> relative = item.noise.relative();
    if (relative && (worst == nullptr || *relative > *worst->relative())) worst = &item.noise;
  }
  return worst;
}

std::string_view GateResult::verdict() const {
  return failed() ? "fail" : passed() ? "pass" : "inconclusive";
}

std::string GateResult::reason() const {
  std::string text;
  for (const std::string& one : reasons) text += (text.empty() ? "" : "; ") + one;
  return text;
}

CaseResult NotRun(CaseSpec spec, std::string reason) {
  CaseResult result;
  result.spec = std::move(spec);
  result.reason = std::move(reason);
  return result;
}

}  // namespace kv::gate
