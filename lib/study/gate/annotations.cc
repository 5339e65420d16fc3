// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/annotations.h"

#include <fmt/format.h>

#include <algorithm>

namespace kv::gate {
namespace {

constexpr size_t kMostShown = 10;

// Percent first, in one pass: what is escaped must not be escaped again.
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

std::string TextOf(const RuleOutcome& rule) {
  std::string text = Text(rule);
  if (rule.baseline) {
    text += fmt::format(" (was {}{})", NumberText(*rule.baseline),
                        rule.pinned ? " in the pinned baseline" : "");
  }
  if (rule.where.known()) text += ", at " + Text(rule.where);
  if (!rule.reason.empty()) text += "\n" + rule.reason;
  if (!rule.reproduce.empty()) text += "\nagain: " + rule.reproduce;
  return text;
}

// The first ten; where there are more, the tenth counts the rest.
void KeepShown(std::vector<Annotation>& list) {
  if (list.size() <= kMostShown) return;
  const size_t more = list.size() - kMostShown + 1;
  list.resize(kMostShown);
  list.back().title = "kvtool gate";
  list.back().text = fmt::format("and {} more: the summary and the page have them all", more);
}

}  // namespace

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
    // Names stand in other places, too, but with this key only where the case begins.
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

std::vector<Annotation> AnnotationsOf(const GateResult& result, const std::string& file,
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
      (failed ? errors : warnings).push_back({failed, file, at, title, TextOf(rule)});
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
