// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/engine.h"

#include <fmt/format.h>

#include <algorithm>

namespace kv::gate {
namespace {

bool Has(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string Beside(const EngineReport& report, std::string_view metric,
                   const std::function<std::optional<double>(std::string_view truth)>& figure) {
  for (const FigurePair& pair : report.pairs) {
    if (!pair.is_verdict || pair.engine != metric) continue;
    const std::optional<double> value = figure(pair.truth);
    return fmt::format(" ({} {})", pair.truth, value ? NumberText(*value) : "not measured");
  }
  return {};
}

void ForEachSuite(Engines engines, const std::function<void(const SuiteInfo&)>& visit) {
  for (const Engine* engine : engines) {
    for (const SuiteInfo& suite : engine->suites) visit(suite);
  }
}

std::string CountKey(const SuiteInfo& suite) { return std::string(suite.name) + "_cases"; }

std::vector<const MetricInfo*> Metrics(Engines engines) {
  std::vector<const MetricInfo*> all;
  for (const MetricInfo& info : OwnMetrics()) all.push_back(&info);
  for (const Engine* engine : engines) {
    for (const MetricInfo& info : engine->metrics) all.push_back(&info);
  }
  return all;
}

const MetricInfo* FindMetric(Engines engines, std::string_view name) {
  for (const MetricInfo* info : Metrics(engines)) {
    if (info->name == name || (!info->word.empty() && info->word == name)) return info;
  }
  return nullptr;
}

CaseSpec NewCase(const Engine& engine) {
  CaseSpec spec;
  spec.engine = &engine;
  spec.suite = engine.suites.front().name;
  return spec;
}

std::optional<CaseSpec> FindSuiteCase(Engines engines, std::string_view name) {
  for (const Engine* engine : engines) {
    if (Has(engine->case_names, name)) return engine->suite_case(name);
  }
  return std::nullopt;
}

const Engine* FindRuntime(Engines engines, std::string_view runtime) {
  for (const Engine* engine : engines) {
    if (Has(engine->runtimes, runtime)) return engine;
  }
  return nullptr;
}

}  // namespace kv::gate
