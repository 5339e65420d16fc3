// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/core/base/bytes.h"
#include "lib/study/gate/summary.h"

namespace kv::gate {
namespace {

void Suite(const SuiteInfo& suite, const GateResult& result, const OutputNames& outputs,
           std::string& text) {
  std::string lines;
  size_t number = 0;
  for (const CaseResult& item : result.cases) {
    if (item.spec.suite != suite.name) continue;
    const std::string line = result.engine->report.line(ToJson(MakeRow(result, item, outputs)));
    lines += fmt::format("{}. {}\n", ++number, line);
  }
  if (!lines.empty()) text += fmt::format("## {}\n\n{}\n", suite.heading, lines);
}

// Escapes characters that would end a table cell or start markup.
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
      text += fmt::format("- **{}**: {}{}", Cell(item.spec.name), Cell(Text(rule)),
                          OlderAndPlace(rule));
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
                              Beside(result.engine->report, rule.rule.metric, figure),
                          rule.margin ? NumberText(*rule.margin) : "-", Cell(status));
    }
  }
  text += "\n";
}

// Adds a table of the figures of the cases that are of a kind.
void FigureTable(std::string_view title, std::span<const std::string_view> columns,
                 bool (*is_of)(const CaseResult& item), const GateResult& result,
                 std::string& text) {
  std::string rows;
  for (const CaseResult& item : result.cases) {
    if (!is_of(item)) continue;
    rows += fmt::format("| {} |", Cell(item.spec.name));
    for (const std::string_view column : columns) {
      const std::optional<double> value = item.measured.Value(column);
      rows += fmt::format(" {} |", value ? NumberText(*value) : "-");
    }
    rows += "\n";
  }
  if (rows.empty()) return;
  text += fmt::format("## {}\n\n| case |", title);
  std::string line = "\n| --- |";
  for (const std::string_view column : columns) {
    text += fmt::format(" {} |", column);
    line += " ---: |";
  }
  text += line + "\n" + rows + "\n";
}

void TrueFigures(const GateResult& result, std::string& text) {
  FigureTable(
      "True figures", result.engine->report.columns,
      [](const CaseResult& item) { return item.origin == Origin::kReplay; }, result, text);
  // Shows logs of engines without a suite, whatever they contain.
  const auto is_log = [](const CaseResult& item) {
    return item.origin == Origin::kLogs && !item.logs;
  };
  std::vector<std::string_view> known;
  for (const MetricInfo* info : result.engine->Metrics()) {
    const bool has = std::any_of(
        result.cases.begin(), result.cases.end(),
        [&](const CaseResult& item) { return is_log(item) && item.measured.Value(info->name); });
    if (has) known.push_back(info->name);
  }
  FigureTable("Figures of the logs", known, is_log, result, text);
}

// Returns true if a reader of the engine's own summary.md would look for something here.
bool IsOfEngine(const GateResult& result) {
  return std::any_of(result.cases.begin(), result.cases.end(), [&](const CaseResult& item) {
    return item.logs || item.spec.only_engine || result.engine->FindSuiteCase(item.spec.name);
  });
}

constexpr size_t kMostShown = 10;

// Escapes percent signs and the rest in one pass, so that nothing is escaped twice.
std::string Escape(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != special.npos) {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string EscapeText(std::string_view text) { return Escape(text, "%\r\n"); }
std::string EscapeProperty(std::string_view text) { return Escape(text, "%\r\n:,"); }

std::string DescribeRule(const RuleOutcome& rule) {
  std::string text = Text(rule) + OlderAndPlace(rule);
  if (!rule.reason.empty()) text += "\n" + rule.reason;
  if (!rule.reproduce.empty()) text += "\nagain: " + rule.reproduce;
  return text;
}

// Keeps at most ten; if there are more, the tenth gives the number of the rest.
void KeepShown(std::vector<Annotation>& list) {
  if (list.size() <= kMostShown) return;
  const size_t more = list.size() - kMostShown + 1;
  list.resize(kMostShown);
  list.back().title = "kvtool gate";
  list.back().text = fmt::format("and {} more: the summary and the page have them all", more);
}

}  // namespace

std::string SummaryMarkdown(const GateResult& result, const OutputNames& outputs) {
  const EngineReport& report = result.engine->report;
  const bool of_engine = IsOfEngine(result);
  std::string text = of_engine ? fmt::format("# {}\n\n", report.title)
                               : fmt::format("# kvtool gate: {}\n\n", result.verdict());
  if (of_engine) {
    text += fmt::format("- overall_pass: {}\n- total_cases: {}\n", result.passed(),
                        result.cases.size());
    for (const SuiteInfo& suite : result.engine->suites) {
      text += fmt::format("- {}: {}\n", suite.count_key, result.count(suite));
    }
  }
  text += fmt::format("- passed, failed, not run: {}, {}, {}\n", result.count(Status::kPass),
                      result.count(Status::kFail), result.count(Status::kNotRun));
  if (!of_engine && !result.commit.empty()) {
    text += fmt::format("- commit: {}\n", Cell(result.commit));
  }
  text += "\n";
  Failures(result, text);
  if (!result.warnings.empty()) text += "## Warnings\n\n";
  for (const std::string& warning : result.warnings) text += fmt::format("- {}\n", Cell(warning));
  if (!result.warnings.empty()) text += "\n";
  if (of_engine) {
    for (const SuiteInfo& suite : result.engine->suites) Suite(suite, result, outputs, text);
  }
  Rules(result, text);
  TrueFigures(result, text);
  text += fmt::format("- summary_json: `{}`\n- cases_jsonl: `{}`\n", outputs.summary_json,
                      outputs.cases_jsonl);
  return Printable(text, true);
}

std::string WorkflowCommand(const Annotation& annotation) {
  std::string properties;
  const auto add = [&](std::string_view key, const std::string& value) {
    if (value.empty()) return;
    properties +=
        fmt::format("{}{}={}", properties.empty() ? " " : ",", key, EscapeProperty(value));
  };
  add("file", annotation.file);
  if (annotation.line != 0) add("line", std::to_string(annotation.line));
  add("title", annotation.title);
  return fmt::format("::{}{}::{}", annotation.is_error ? "error" : "warning", properties,
                     EscapeText(annotation.text));
}

std::map<std::string, uint64_t> LinesOfCases(std::string_view config, const GateResult& result) {
  std::map<std::string, uint64_t> lines;
  for (const CaseResult& item : result.cases) {
    // Names occur elsewhere too, but with this key only at the beginning of a case.
    const std::string quoted = Json(item.spec.name).dump();
    for (size_t at = config.find("\"name\""); at != config.npos;
         at = config.find("\"name\"", at + 1)) {
      const size_t value = config.find_first_not_of(": \t\r\n", at + 6);
      if (value == config.npos || config.substr(value, quoted.size()) != quoted) continue;
      lines[item.spec.name] =
          1 + static_cast<uint64_t>(std::count(config.begin(), config.begin() + value, '\n'));
      break;
    }
  }
  return lines;
}

std::vector<Annotation> MakeAnnotations(const GateResult& result, const std::string& file,
                                        const std::map<std::string, uint64_t>& lines) {
  std::vector<Annotation> errors, warnings;
  for (const std::string& reason : result.reasons) {
    errors.push_back({true, file, 0, "kvtool gate", reason});
  }
  for (const CaseResult& item : result.cases) {
    const auto line = lines.find(item.spec.name);
    const uint64_t at = line == lines.end() ? 0 : line->second;
    const std::string title = "kvtool gate: " + item.spec.name;
    bool explained = false;
    for (const RuleOutcome& rule : item.rules) {
      if (rule.status != Status::kFail && rule.status != Status::kInconclusive) continue;
      const bool failed = rule.status == Status::kFail;
      (failed ? errors : warnings).push_back({failed, file, at, title, DescribeRule(rule)});
      explained = true;
    }
    if (item.status == Status::kFail && !explained) {
      errors.push_back({true, file, at, title, item.reason});
    }
    for (const std::string& warning : item.warnings) {
      warnings.push_back({false, file, at, title, warning});
    }
  }
  for (const std::string& warning : result.warnings) {
    warnings.push_back({false, file, 0, "kvtool gate", warning});
  }
  KeepShown(errors);
  KeepShown(warnings);
  errors.insert(errors.end(), std::make_move_iterator(warnings.begin()),
                std::make_move_iterator(warnings.end()));
  return errors;
}

}  // namespace kv::gate
