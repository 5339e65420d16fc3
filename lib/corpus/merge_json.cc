// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/corpus/spread.h"

namespace kv::corpus {
namespace {

using SummaryJson = nlohmann::ordered_json;

SummaryJson SpreadJson(const FigureKey& key, const Spread& spread) {
  return {{"figure", key.figure},
          {"what", key.what},
          {"part", key.part},
          {"layer", key.layer ? SummaryJson(*key.layer) : SummaryJson()},
          {"count", spread.count},
          {"weighted", spread.weighted ? SummaryJson(*spread.weighted) : SummaryJson()},
          {"mean", spread.mean},
          {"deviation", spread.deviation},
          {"min", spread.min},
          {"p5", spread.p5},
          {"median", spread.median},
          {"p95", spread.p95},
          {"max", spread.max}};
}

SummaryJson OrNull(const std::string& text) {
  return text.empty() ? SummaryJson() : SummaryJson(text);
}

// A word of a command as a shell takes it.
std::string Quoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_./+:@%,-=").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// Sorted by model and format, with the figures that were collected for each.
SummaryJson GroupsJson(const Merged& merged, std::vector<SummaryJson>& figures) {
  std::vector<size_t> order(merged.groups.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tie(merged.groups[i].model, merged.groups[i].format);
    };
    return key(a) < key(b);
  });
  SummaryJson json = SummaryJson::array();
  for (const size_t i : order) {
    json.push_back({{"model", OrNull(merged.groups[i].model)},
                    {"format", OrNull(merged.groups[i].format)},
                    {"entries", merged.groups[i].entries},
                    {"figures", std::move(figures[i])}});
  }
  return json;
}

SummaryJson CountsJson(const std::map<std::string, uint64_t>& counts, const char* word) {
  SummaryJson json = SummaryJson::array();
  for (const auto& [text, count] : counts) json.push_back({{word, text}, {"entries", count}});
  return json;
}

SummaryJson CasesJson(const Merged& merged) {
  SummaryJson json = SummaryJson::array();
  for (const MergedCase& one : merged.cases) {
    const auto count = [&](const char* status) {
      const auto found = one.statuses.find(status);
      return found == one.statuses.end() ? uint64_t{0} : found->second;
    };
    json.push_back({{"name", one.name},
                    {"pass", count("pass")},
                    {"fail", count("fail")},
                    {"not_run", count("not_run")},
                    {"inconclusive", count("inconclusive")},
                    {"failing", CountsJson(one.failing, "rule")}});
  }
  return json;
}

// Why an input is not done, in one line; empty for a verdict without words.
std::string FailureText(const MergedInput& input) {
  if (!input.text.empty()) return input.text;
  std::string text;
  for (const CaseVerdict& one : input.cases) {
    if (one.status == "fail") text += (text.empty() ? "" : "; ") + one.name + ": " + one.text;
  }
  return text.empty() ? input.reason : text;
}

}  // namespace

std::string CommandFor(const Merged& merged, const std::string& name) {
  std::string text = "kvtool " + merged.head.command;
  for (const std::string& parameter : merged.head.parameters) {
    if (!parameter.starts_with("--")) {
      text += " " + Quoted(parameter);
      continue;
    }
    const size_t space = parameter.find(' ');
    text += " " + parameter.substr(0, space);
    if (space != parameter.npos) text += " " + Quoted(parameter.substr(space + 1));
  }
  return text + (name.starts_with('-') ? " -- " : " ") + Quoted(name);
}

SummaryJson MergedJson(const Merged& merged) {
  SummaryJson failures = SummaryJson::array();
  merged.ForEachInput([&](const MergedInput& input) {
    if (input.exit_code == 0) return;
    failures.push_back({{"name", input.name},
                        {"exit_code", input.exit_code},
                        {"finding", OrNull(input.finding)},
                        {"text", OrNull(FailureText(input))},
                        {"command", CommandFor(merged, input.name)}});
  });
  SummaryJson figures = SummaryJson::array(), outliers = SummaryJson::array();
  std::vector<SummaryJson> of_groups(merged.groups.size(), SummaryJson::array());
  for (const auto& [key, extent] : merged.figures) {
    const FigureSpread spread = SpreadOf(merged, extent);
    figures.push_back(SpreadJson(key, spread.all));
    if (key.layer) continue;
    for (const auto& [group, of_group] : spread.by_group) {
      of_groups[group].push_back(SpreadJson(key, of_group));
    }
    for (const FigureValue& value : spread.outliers) {
      const std::string name = merged.Input(value.input).name;
      outliers.push_back({{"figure", key.figure},
                          {"what", key.what},
                          {"part", key.part},
                          {"name", name},
                          {"value", value.value},
                          {"median", spread.all.median},
                          {"command", CommandFor(merged, name)}});
    }
  }
  const std::optional<std::string> verdict = VerdictOf(merged);
  return {{"command", merged.head.command},
          {"parameters", merged.head.parameters},
          {"parameters_xxh3", merged.head.parameters_xxh3},
          {"version", merged.head.version},
          {"entries", merged.entries},
          {"done", merged.done},
          {"negative", merged.negative},
          {"failed", merged.failed},
          {"verdict", verdict ? SummaryJson(*verdict) : SummaryJson()},
          {"verdicts", CountsJson(merged.verdicts, "verdict")},
          {"cases", CasesJson(merged)},
          {"figures", std::move(figures)},
          {"groups", GroupsJson(merged, of_groups)},
          {"outliers", std::move(outliers)},
          {"failures", std::move(failures)}};
}

}  // namespace kv::corpus
