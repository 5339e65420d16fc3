// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"

namespace kv::gate {
namespace {

using Document = nlohmann::json;  // finds keys fast, however many an object has
using FigureMap = std::map<std::string, double, std::less<>>;

std::string WordOr(const Document& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// {"content": {"mismatches": 0}} to "content.mismatches".
void Collect(const Document& json, const std::string& prefix, const Engine& engine,
             FigureMap& figures) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object() && prefix.empty()) {
      Collect(value, name, engine, figures);
    } else if ((value.is_number() || value.is_boolean()) && engine.FindMetric(name) != nullptr) {
      figures[name] = value.is_boolean() ? (value.get<bool>() ? 1 : 0) : value.get<double>();
    }
  }
}

const Document& ArrayAt(const Document& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array()) {
    throw Error(Finding::kBadField,
                fmt::format("this is not a summary of a gate: '{}' is not an array", key));
  }
  return *found;
}

bool IsTrue(const Document& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

void Conclude(const std::string& status, BaselineCase& of) {
  of.passed = status == "pass";
  of.failed |= status == "fail" || status == "inconclusive";
}

// The hashes of the files that were read, by name.
std::map<std::string, std::string> HashesOf(const Document& json) {
  std::map<std::string, std::string> hashes;
  const auto inputs = json.find("inputs");
  if (inputs == json.end() || !inputs->is_array()) return hashes;
  for (const Document& input : *inputs) {
    if (input.is_object()) hashes[WordOr(input, "file")] = WordOr(input, "xxh3");
  }
  return hashes;
}

std::map<std::string, std::string> ReadSettings(const Document& item) {
  std::map<std::string, std::string> settings;
  if (item.contains("params") && item["params"].is_object()) {
    for (const auto& [name, value] : item["params"].items()) settings[name] = value.dump();
  }
  if (!item.contains("rows") || !item["rows"].is_array()) return settings;
  for (const char* key : {"prompt_tokens", "decode_tokens"}) {
    for (const Document& row : item["rows"]) {
      if (!row.is_object() || !row.contains(key)) continue;
      std::string& lengths = settings[key];
      lengths += (lengths.empty() ? "" : ",") + row[key].dump();
    }
  }
  return settings;
}

void ReadCase(const Document& item, const std::map<std::string, std::string>& hashes,
              const Engine& engine, BaselineCase& of) {
  for (const char* part : {"engine", "true_figures"}) {
    if (item.contains(part)) Collect(item[part], "", engine, of.figures);
  }
  of.origin = WordOr(item, "origin");
  Conclude(WordOr(item, "status"), of);
  const auto rules = item.find("rules");
  if (rules != item.end() && rules->is_array()) {
    for (const Document& rule : *rules) {
      of.failed |= rule.is_object() && WordOr(rule, "status") == "fail";
    }
  }
  const auto listed = hashes.find(WordOr(item, "snapshot"));
  for (const std::string& hash :
       {WordOr(item, "snapshot_xxh3"), listed == hashes.end() ? std::string() : listed->second}) {
    if (!hash.empty()) of.snapshot_hashes.push_back(hash);
  }
  of.trace_hash = WordOr(item, "trace_xxh3");
  of.states_trace = item.contains("trace_xxh3");
  of.settings = ReadSettings(item);
}

// A baseline passed if it says so and nothing in it says otherwise.
bool Passed(const Document& json, const Baseline& baseline) {
  const bool stated =
      baseline.verdict.empty() ? IsTrue(json, "overall_pass") : baseline.verdict == "pass";
  return stated && std::none_of(baseline.cases.begin(), baseline.cases.end(),
                                [](const auto& entry) { return entry.second.failed; });
}

RuleOutcome Compare(const DeltaRule& rule, Op op, double limit, double older,
                    const Measurements& measured) {
  RuleOutcome outcome =
      Evaluate({std::string(rule.metric), op, limit, false, false, rule.is_flag}, measured);
  outcome.baseline = older;
  if (!outcome.value) {
    outcome.status = Status::kFail;
    outcome.reason = "no longer measured: " + outcome.reason;
  }
  return outcome;
}

}  // namespace

Baseline ParseBaseline(std::string_view text, std::string file, const Engine& engine) {
  Baseline baseline;
  baseline.file = std::move(file);
  const Document json = ReadJson(text);
  if (json.is_discarded()) throw Error(Finding::kBadText, "expected a JSON document");
  if (!json.is_object())
    throw Error(Finding::kBadField, "this is not a summary of a gate: it is not an object");
  const std::string schema = WordOr(json, "schema");
  if (!schema.empty() && schema != "kvtool.gate/1") {
    throw Error(Finding::kBadField,
                fmt::format("expected schema kvtool.gate/1, found '{}'", Escaped(schema)));
  }
  baseline.generated_at = WordOr(json, "generated_at");
  baseline.verdict = WordOr(json, "verdict");
  baseline.commit = WordOr(json, "commit");
  baseline.is_ours = !schema.empty();
  if (json.contains("tool") && json["tool"].is_object()) {
    baseline.version = WordOr(json["tool"], "version");
  }
  for (const Document& row : ArrayAt(json, "rows")) {
    const std::string name = row.is_object() ? WordOr(row, "case") : std::string();
    if (name.empty()) throw Error(Finding::kBadField, "a row has no 'case'");
    BaselineCase& of = baseline.cases[name];
    Collect(row, "", engine, of.figures);
    if (baseline.is_ours) continue;
    of.origin = "engine_logs";
    Conclude(IsTrue(row, "overall_pass") ? "pass" : "fail", of);
  }
  if (baseline.is_ours) {
    const std::map<std::string, std::string> hashes = HashesOf(json);
    for (const Document& item : ArrayAt(json, "cases")) {
      const std::string name = item.is_object() ? WordOr(item, "name") : std::string();
      if (name.empty()) throw Error(Finding::kBadField, "a case has no 'name'");
      ReadCase(item, hashes, engine, baseline.cases[name]);
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
      outcomes.push_back(
          Compare(rule, Op::kAtLeast, value - *rule.max_drop * std::abs(value), value, measured));
    }
    if (rule.max_rise) {
      outcomes.push_back(
          Compare(rule, Op::kAtMost, value + *rule.max_rise * std::abs(value), value, measured));
    }
  }
  return outcomes;
}

}  // namespace kv::gate
