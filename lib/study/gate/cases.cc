// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/cases.h"

#include <algorithm>

namespace kv::gate {
namespace {

constexpr auto kAtLeast = Op::kAtLeast;
constexpr auto kAtMost = Op::kAtMost;

// Of every runtime case: the suite's environment.
std::vector<Rule> Common(double lossy, double lossless, double decode_drop) {
  return {{"lossy_best", kAtLeast, lossy},
          {"lossless_selected_value", kAtLeast, lossless},
          {"decode_drop_ratio", kAtMost, decode_drop},
          {"runtime_queue_peak_best", kAtMost, 8},
          {"runtime_fallback_best", kAtMost, 0}};
}

std::vector<Rule> BaselineRules() { return Common(1.0, 1.0, 1.0); }

std::vector<Rule> LlmDemoRules() {
  // No lossy and no lossless threshold: the original has none here.
  return {{"decode_drop_ratio", kAtMost, 0.08},
          {"decode_pass", Op::kEqual, 1},
          {"runtime_decomp_best_us", Op::kAbove, 0}};
}

}  // namespace

std::string_view Name(Suite suite) { return suite == Suite::kRuntime ? "runtime" : "llm_demo"; }

const std::vector<std::string>& SuiteCaseNames() {
  static const std::vector<std::string> names = {"runtime_baseline", "runtime_probe",
                                                 "runtime_full",     "runtime_store",
                                                 "llm_demo_full",    "llm_demo_store"};
  return names;
}

std::vector<Rule> SuiteRules(std::string_view mode) {
  std::vector<Rule> rules = Common(3.0, 1.3, 0.05);
  // Ours: what a replay can say of speed stands beside what only an engine can.
  rules.push_back({"attention_drop_ratio", kAtMost, 0.05, false, true});
  if (mode == "probe") {
    rules.push_back({"runtime_async_wait_best_us", kAtMost, 20000});
    return rules;
  }
  const bool store = mode == "store";
  rules.push_back({"runtime_decomp_best_us", Op::kAbove, 0});
  rules.push_back({"runtime_decomp_best_us", kAtMost, store ? 70000.0 : 30000.0});
  rules.push_back({"runtime_async_wait_best_us", kAtMost, store ? 40000.0 : 20000.0});
  rules.push_back({"kv_content_consistency_pass", Op::kEqual, 1});
  return rules;
}

std::optional<CaseSpec> FindSuiteCase(std::string_view name) {
  const auto& names = SuiteCaseNames();
  if (std::find(names.begin(), names.end(), name) == names.end()) return std::nullopt;
  CaseSpec spec;
  spec.name = name;
  spec.suite = name.substr(0, 8) == "llm_demo" ? Suite::kLlmDemo : Suite::kRuntime;
  spec.mode = name.substr(name.rfind('_') + 1);
  if (name == "runtime_baseline") {
    spec.mode = "full";
    spec.params = {{"h2o_enable", 0.0}, {"h2o_lossless_enable", 0.0}};
    spec.rules = BaselineRules();
    return spec;
  }
  spec.rules = spec.suite == Suite::kLlmDemo ? LlmDemoRules() : SuiteRules(spec.mode);
  return spec;
}

void RequireContent(CaseSpec& spec) {
  const auto named = std::any_of(spec.rules.begin(), spec.rules.end(), [](const Rule& rule) {
    return rule.metric == "content.mismatches";
  });
  if (named || NeedsEngine(spec) || OnlyCompares(spec) || !IsOn(spec.params, "h2o_lossless_enable"))
    return;
  spec.rules.push_back({"content.mismatches", kAtMost, 0, false, true});
}

void RequireReference(CaseSpec& spec) {
  if (spec.reference.empty()) return;
  bool structure = false, values = false;
  for (Rule& rule : spec.rules) {
    if (rule.metric.rfind("reference.", 0) != 0) continue;
    rule.required = true;
    (rule.metric == "reference.structure" ? structure : values) = true;
  }
  if (!structure) spec.rules.push_back({"reference.structure", kAtMost, 0, true});
  if (!values) spec.rules.push_back({"reference.mismatches", kAtMost, 0, true});
}

std::optional<double> Tolerance::Of(uint32_t layer, bool is_value) const {
  const auto found = std::find_if(layers.begin(), layers.end(),
                                  [&](const auto& one) { return one.first == layer; });
  return found == layers.end() ? all[is_value] : found->second[is_value];
}

}  // namespace kv::gate
