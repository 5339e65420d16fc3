// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/result.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/utf8.h"

namespace kv::gate {

const ParamInfo* FindParam(std::span<const ParamInfo> known, std::string_view name) {
  const auto found = std::find_if(known.begin(), known.end(), [&](const ParamInfo& info) {
    return info.name == name || (!info.word.empty() && info.word == name);
  });
  return found == known.end() ? nullptr : &*found;
}

void Assign(std::string_view name, ParamValue value, Params& params) {
  const auto found =
      std::find_if(params.begin(), params.end(), [&](const auto& p) { return p.first == name; });
  if (found != params.end()) {
    found->second = std::move(value);
  } else {
    params.emplace_back(std::string(name), std::move(value));
  }
}

void Merge(const Params& over, Params& params) {
  for (const auto& [name, value] : over) Assign(name, value, params);
}

const ParamValue* Find(const Params& params, std::string_view name) {
  const auto found =
      std::find_if(params.begin(), params.end(), [&](const auto& p) { return p.first == name; });
  return found == params.end() ? nullptr : &found->second;
}

bool IsOn(const Params& params, std::string_view name) { return NumberOr(params, name, 1) != 0; }

double NumberOr(const Params& params, std::string_view name, double fallback) {
  const ParamValue* value = Find(params, name);
  const double* number = value == nullptr ? nullptr : std::get_if<double>(value);
  return number == nullptr ? fallback : *number;
}

std::string CaseNames::Add(std::string_view name) {
  constexpr size_t kLongestName = 150;
  size_t end = std::min(name.size(), kLongestName);
  const auto is_inside = [&](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  while (end > 0 && end < name.size() && is_inside(name[end])) --end;  // not within a character
  const std::string plain(name.substr(0, end));
  std::string unique = plain;
  for (int i = 2; !taken_.insert(unique).second; ++i) unique = fmt::format("{}-{}", plain, i);
  return unique;
}

void RequireContent(const Engine& engine, CaseSpec& spec) {
  const auto named = std::any_of(spec.rules.begin(), spec.rules.end(), [](const Rule& rule) {
    return rule.metric == "content.mismatches";
  });
  const bool compresses = IsOn(spec.params, engine.switch_param);
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

std::string Beside(const EngineReport& report, std::string_view metric,
                   const std::function<std::optional<double>(std::string_view truth)>& figure) {
  for (const FigurePair& pair : report.pairs) {
    if (!pair.is_verdict || pair.engine != metric) continue;
    const std::optional<double> value = figure(pair.truth);
    return fmt::format(" ({} {})", pair.truth, value ? NumberText(*value) : "not measured");
  }
  return {};
}

std::vector<const MetricInfo*> Engine::Metrics() const {
  std::vector<const MetricInfo*> all;
  for (const MetricInfo& info : OwnMetrics()) all.push_back(&info);
  for (const MetricInfo& info : metrics) all.push_back(&info);
  return all;
}

const MetricInfo* Engine::FindMetric(std::string_view name) const {
  for (const MetricInfo* info : Metrics()) {
    if (info->name == name || (!info->word.empty() && info->word == name)) return info;
  }
  return nullptr;
}

CaseSpec Engine::NewCase() const {
  CaseSpec spec;
  spec.suite = suites.front().name;
  return spec;
}

std::optional<CaseSpec> Engine::FindSuiteCase(std::string_view name) const {
  const bool is_known = std::find(case_names.begin(), case_names.end(), name) != case_names.end();
  return is_known ? std::optional(suite_case(name)) : std::nullopt;
}

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

uint64_t GateResult::count(const SuiteInfo& suite) const {
  return static_cast<uint64_t>(
      std::count_if(cases.begin(), cases.end(),
                    [&](const CaseResult& result) { return result.spec.suite == suite.name; }));
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

std::optional<CaseResult> TakeCase(const CaseSpec& spec, std::vector<CaseResult>& of_logs) {
  const auto found = std::find_if(of_logs.begin(), of_logs.end(), [&](const CaseResult& item) {
    return item.spec.name == spec.name;
  });
  if (found == of_logs.end()) return std::nullopt;
  CaseResult result = std::move(*found);
  of_logs.erase(found);
  result.spec.on_not_run = spec.on_not_run;
  if (!spec.own_rules) return result;
  // Thresholds are those of the config; faults that fail a case regardless of figures have none.
  result.spec.rules = spec.rules;
  std::erase_if(result.spec.rules, [](const Rule& rule) { return rule.implied; });
  std::erase_if(result.rules, [](const RuleOutcome& outcome) { return !outcome.rule.implied; });
  result.status = Status::kNotRun;
  result.reason.clear();
  return result;
}

void AddFromLogs(const CaseSpec& spec, std::string_view path, std::vector<CaseResult>& of_logs,
                 CaseResult& replayed) {
  std::optional<CaseResult> taken = TakeCase(spec, of_logs);
  if (!taken) return;
  for (RuleOutcome& outcome : taken->rules) {
    if (outcome.where.log.empty()) outcome.where.log = path;
    replayed.rules.push_back(std::move(outcome));
  }
}

std::string ShellLine(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + ShellQuoted(word);
  return line;
}

void AddReproduction(const std::vector<std::string>& command, GateResult& result) {
  const std::string line = ShellLine(command);
  for (CaseResult& item : result.cases) {
    for (RuleOutcome& rule : item.rules) {
      if (rule.status != Status::kFail && rule.status != Status::kInconclusive) continue;
      rule.reproduce = line + " --case " + ShellQuoted(item.spec.name);
    }
  }
}

const RuleOutcome* DecidingRule(const CaseResult& result) {
  if (const RuleOutcome* failure = result.first_failure()) return failure;
  if (const RuleOutcome* open = result.first(Status::kInconclusive)) return open;
  const RuleOutcome* closest = nullptr;
  for (const RuleOutcome& rule : result.rules) {
    if (rule.status != Status::kPass || !rule.margin) continue;
    if (closest == nullptr || rule.slack() < closest->slack()) closest = &rule;
  }
  return closest;
}

}  // namespace kv::gate
