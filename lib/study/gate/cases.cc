// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/cases.h"

#include <algorithm>

#include "lib/study/gate/engine.h"

namespace kv::gate {

void RequireContent(CaseSpec& spec) {
  const auto named = std::any_of(spec.rules.begin(), spec.rules.end(), [](const Rule& rule) {
    return rule.metric == "content.mismatches";
  });
  const bool compresses = spec.engine != nullptr && spec.engine->compresses(spec);
  if (named || spec.only_engine || OnlyCompares(spec) || spec.mode == kQuant || !compresses) return;
  spec.rules.push_back({"content.mismatches", Op::kAtMost, 0, false, true});
}

void RequireReference(CaseSpec& spec) {
  if (spec.reference.empty()) return;
  bool structure = false, values = false;
  for (Rule& rule : spec.rules) {
    if (rule.metric.rfind("reference.", 0) != 0) continue;
    rule.required = true;
    (rule.metric == "reference.structure" ? structure : values) = true;
  }
  if (!structure) spec.rules.push_back({"reference.structure", Op::kAtMost, 0, true});
  if (!values) spec.rules.push_back({"reference.mismatches", Op::kAtMost, 0, true});
}

std::optional<double> Tolerance::Of(uint32_t layer, bool is_value) const {
  const auto found = std::find_if(layers.begin(), layers.end(),
                                  [&](const auto& one) { return one.first == layer; });
  return found == layers.end() ? all[is_value] : found->second[is_value];
}

}  // namespace kv::gate
