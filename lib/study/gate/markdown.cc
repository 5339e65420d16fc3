// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/markdown.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/study/gate/engine.h"

namespace kv::gate {
namespace {

void Suite(const SuiteInfo& suite, const GateResult& result, const OutputNames& outputs,
           std::string& text) {
  std::string lines;
  size_t number = 0;
  for (const CaseResult& item : result.cases) {
    if (item.spec.suite != suite.name) continue;
    const std::string line = item.spec.engine->report.line(RowOf(item, outputs));
    lines += fmt::format("{}. {}\n", ++number, line);
  }
  if (!lines.empty()) text += fmt::format("## {}\n\n{}\n", suite.heading, lines);
}

// Characters that would end a table cell or start markup.
std::string Cell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|' || c == '<') cell += '\\';
    cell += c == '\n' ? ' ' : c;
  }
  return cell;
}

void Failures(const GateResult& result, std::string& text) {
  if (result.passed()) return;
  text += result.failed() ? "## Why it failed\n\n" : "## Why it is inconclusive\n\n";
  for (const std::string& reason : result.reasons) text += fmt::format("- {}\n", Cell(reason));
  for (const CaseResult& item : result.cases) {
    for (const RuleOutcome& rule : item.rules) {
      if (rule.status != Status::kFail && rule.status != Status::kInconclusive) continue;
      text += fmt::format("- **{}**: {}", Cell(item.spec.name), Cell(Text(rule)));
      if (rule.where.known()) text += ", at " + Text(rule.where);
      if (rule.baseline) {
        text += fmt::format(", was {}{}", NumberText(*rule.baseline),
                            rule.pinned ? " in the pinned baseline" : "");
      }
      if (!rule.reason.empty()) text += ": " + Cell(rule.reason);
      text += "\n";
      if (!rule.reproduce.empty()) text += fmt::format("  `{}`\n", rule.reproduce);
    }
  }
  text += "\n";
}

void Rules(const GateResult& result, std::string& text) {
  text +=
      "## Rules\n\n| case | rule | value | margin | status |\n| --- | --- | ---: | ---: | --- |\n";
  for (const CaseResult& item : result.cases) {
    const auto figure = [&](std::string_view name) { return item.measured.Value(name); };
    for (const RuleOutcome& rule : item.rules) {
      const bool is_flag = rule.rule.is_flag;
      std::string status(Name(rule.status));
      if (rule.status == Status::kNotRun || rule.status == Status::kInconclusive) {
        status += ": " + rule.reason;
      }
      text += fmt::format("| {} | {} {} {}{} | {} | {} | {} |\n", Cell(item.spec.name),
                          rule.rule.shown(), Cell(Name(rule.rule.op)),
                          NumberText(rule.rule.limit, is_flag),
                          rule.pinned     ? " (pinned)"
                          : rule.baseline ? " (baseline)"
                                          : "",
                          (rule.value ? NumberText(*rule.value, is_flag) : "-") +
                              Beside(item.spec.engine->report, rule.rule.metric, figure),
                          rule.margin ? NumberText(*rule.margin) : "-", Cell(status));
    }
  }
  text += "\n";
}

void TrueFigures(const GateResult& result, std::string& text) {
  const std::span<const std::string_view> columns = result.engines.front()->report.columns;
  std::string rows;
  for (const CaseResult& item : result.cases) {
    if (item.origin != Origin::kReplay) continue;
    rows += fmt::format("| {} |", Cell(item.spec.name));
    for (const std::string_view column : columns) {
      const std::optional<double> value = item.measured.Value(column);
      rows += fmt::format(" {} |", value ? NumberText(*value) : "-");
    }
    rows += "\n";
  }
  if (rows.empty()) return;
  text += "## True figures\n\n| case |";
  std::string line = "\n| --- |";
  for (const std::string_view column : columns) {
    text += fmt::format(" {} |", column);
    line += " ---: |";
  }
  text += line + "\n" + rows + "\n";
}

// Whether a reader of the engine's own summary.md would look for anything here.
bool IsOfEngine(const GateResult& result) {
  return std::any_of(result.cases.begin(), result.cases.end(), [&](const CaseResult& item) {
    return item.logs || item.spec.only_engine || FindSuiteCase(result.engines, item.spec.name);
  });
}

void Outputs(const OutputNames& outputs, std::string& text) {
  text += fmt::format("- summary_json: `{}`\n- cases_jsonl: `{}`\n", outputs.summary_json,
                      outputs.cases_jsonl);
}

// The cases in words of no engine's.
std::string OwnMarkdown(const GateResult& result, const OutputNames& outputs) {
  std::string text = fmt::format("# kvtool gate: {}\n\n- passed, failed, not run: {}, {}, {}\n",
                                 result.verdict(), result.count(Status::kPass),
                                 result.count(Status::kFail), result.count(Status::kNotRun));
  if (!result.commit.empty()) text += fmt::format("- commit: {}\n", Cell(result.commit));
  text += "\n";
  Failures(result, text);
  Rules(result, text);
  TrueFigures(result, text);
  Outputs(outputs, text);
  return text;
}

}  // namespace

std::string SummaryMarkdown(const GateResult& result, const OutputNames& outputs) {
  if (!IsOfEngine(result)) return Printable(OwnMarkdown(result, outputs), true);
  const Json summary = SummaryJson(result, "", outputs);
  std::string text = fmt::format("# {}\n\n", result.engines.front()->report.title);
  std::vector<std::string> keys = {"overall_pass", "total_cases"};
  ForEachSuite(result.engines, [&](const SuiteInfo& suite) { keys.push_back(CountKey(suite)); });
  for (const std::string& key : keys) text += fmt::format("- {}: {}\n", key, summary[key].dump());
  text += fmt::format("- passed, failed, not run: {}, {}, {}\n\n", result.count(Status::kPass),
                      result.count(Status::kFail), result.count(Status::kNotRun));
  Failures(result, text);
  ForEachSuite(result.engines,
               [&](const SuiteInfo& suite) { Suite(suite, result, outputs, text); });
  Rules(result, text);
  TrueFigures(result, text);
  Outputs(outputs, text);
  return Printable(text, true);
}

}  // namespace kv::gate
