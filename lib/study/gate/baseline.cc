// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::gate {
namespace {

using Json = nlohmann::json;
using Figures = std::map<std::string, double, std::less<>>;

std::string WordOr(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// {"content": {"mismatches": 0}} to "content.mismatches".
void Collect(const Json& json, const std::string& prefix, Figures& figures) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object() && prefix.empty()) {
      Collect(value, name, figures);
    } else if ((value.is_number() || value.is_boolean()) && FindMetric(name) != nullptr) {
      figures[name] = value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
    }
  }
}

const Json& ArrayAt(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) {
    throw Error(Finding::kBadField, fmt::format("no summary of a gate: '{}' is no array", key));
  }
  return *found;
}

bool IsTrue(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

void Conclude(const std::string& status, BaselineCase& of) {
  of.passed = status == "pass";
  of.failed |= status == "fail" || status == "inconclusive";
}

// The hashes of the files that were read, by name.
std::map<std::string, std::string> HashesOf(const Json& json) {
  std::map<std::string, std::string> hashes;
  const auto inputs = json.find("inputs");
  if (inputs == json.end() || !inputs->is_array()) return hashes;
  for (const Json& input : *inputs) {
    if (input.is_object()) hashes[WordOr(input, "file")] = WordOr(input, "xxh3");
  }
  return hashes;
}

void ReadCase(const Json& item, const std::map<std::string, std::string>& hashes,
              BaselineCase& of) {
  for (const char* part : {"engine", "true_figures"}) {
    if (item.contains(part)) Collect(item[part], "", of.figures);
  }
  of.origin = WordOr(item, "origin");
  Conclude(WordOr(item, "status"), of);
  const auto rules = item.find("rules");
  if (rules != item.end() && rules->is_array()) {
    for (const Json& rule : *rules) {
      of.failed |= rule.is_object() && WordOr(rule, "status") == "fail";
    }
  }
  const auto listed = hashes.find(WordOr(item, "snapshot"));
  for (const std::string& hash :
       {WordOr(item, "snapshot_xxh3"), listed == hashes.end() ? std::string() : listed->second}) {
    if (!hash.empty()) of.snapshot_hashes.push_back(hash);
  }
}

// A baseline passed if it says so and nothing in it says otherwise.
bool Passed(const Json& json, const Baseline& baseline) {
  const bool stated =
      baseline.verdict.empty() ? IsTrue(json, "overall_pass") : baseline.verdict == "pass";
  return stated && std::none_of(baseline.cases.begin(), baseline.cases.end(),
                                [](const auto& entry) { return entry.second.failed; });
}

RuleOutcome Compare(const std::string& metric, Op op, double limit, double older,
                    const Measurements& measured) {
  RuleOutcome outcome = Evaluate({metric, op, limit}, measured);
  outcome.baseline = older;
  if (!outcome.value) {
    outcome.status = Status::kFail;
    outcome.reason = "no longer measured: " + outcome.reason;
  }
  return outcome;
}

}  // namespace

std::vector<DeltaRule> DefaultDeltaRules() {
  return {{"lossy_worst", 0.01, {}},
          {"whole_model_ratio", 0.01, {}},
          {"measured_ratio", 0.01, {}},
          {"measured_ratio_mean", 0.01, {}},
          {"lossless_selected_value", 0.01, {}},
          {"attention_error.mean", {}, 0.05},
          {"resident_bytes.peak", {}, 0.01}};
}

Baseline ParseBaseline(std::string_view text, std::string file) {
  Baseline baseline;
  baseline.file = std::move(file);
  Json json;
  try {
    json = Json::parse(text.begin(), text.end());
  } catch (const Json::exception&) {
    throw Error(Finding::kBadText, "no JSON");
  }
  if (!json.is_object()) throw Error(Finding::kBadField, "no summary of a gate: not an object");
  const std::string schema = WordOr(json, "schema");
  if (!schema.empty() && schema != "kvtool.gate/1") {
    throw Error(Finding::kBadField,
                fmt::format("expected schema kvtool.gate/1, found '{}'", Escaped(schema)));
  }
  baseline.generated_at = WordOr(json, "generated_at");
  baseline.verdict = WordOr(json, "verdict");
  baseline.is_ours = !schema.empty();
  for (const Json& row : ArrayAt(json, "rows")) {
    const std::string name = row.is_object() ? WordOr(row, "case") : std::string();
    if (name.empty()) throw Error(Finding::kBadField, "a row without 'case'");
    BaselineCase& of = baseline.cases[name];
    Collect(row, "", of.figures);
    if (!baseline.is_ours) Conclude(IsTrue(row, "overall_pass") ? "pass" : "fail", of);
  }
  if (baseline.is_ours) {
    const std::map<std::string, std::string> hashes = HashesOf(json);
    for (const Json& item : ArrayAt(json, "cases")) {
      const std::string name = item.is_object() ? WordOr(item, "name") : std::string();
      if (name.empty()) throw Error(Finding::kBadField, "a case without 'name'");
      ReadCase(item, hashes, baseline.cases[name]);
    }
  }
  baseline.passed = Passed(json, baseline);
  return baseline;
}

std::vector<RuleOutcome> CompareWithBaseline(const Baseline& baseline, const std::string& name,
                                             const std::vector<DeltaRule>& rules,
                                             const Measurements& measured) {
  std::vector<RuleOutcome> outcomes;
  const auto older = baseline.cases.find(name);
  if (older == baseline.cases.end()) return outcomes;
  for (const DeltaRule& rule : rules) {
    const auto found = older->second.figures.find(rule.metric);
    if (found == older->second.figures.end()) continue;
    const double value = found->second;
    if (rule.max_drop) {
      outcomes.push_back(Compare(rule.metric, Op::kAtLeast,
                                 value - *rule.max_drop * std::abs(value), value, measured));
    }
    if (rule.max_rise) {
      outcomes.push_back(Compare(rule.metric, Op::kAtMost, value + *rule.max_rise * std::abs(value),
                                 value, measured));
    }
  }
  return outcomes;
}

}  // namespace kv::gate
