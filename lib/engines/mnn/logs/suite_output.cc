// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/suite_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv::mnn::logs {
namespace {

constexpr const char *kSummary = "summary.json", *kRows = "cases.jsonl", *kText = "summary.md";
constexpr size_t kMaxName = 200;
constexpr size_t kHeader = 4096;  // bytes of a summary that hold its schema

bool IsOurs(const std::string& text) { return Contains(text.substr(0, kHeader), "\"kvtool.gate/"); }

bool IsTrue(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

// A name that is a folder of the suite's, not a way out of it.
bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName && name[0] != '.' && name == OnlyUtf8(name) &&
         name.find_first_of("/\\") == std::string::npos;
}

void PutCode(const Json& code, const std::string& place, CaseOutput& output) {
  const double value = code.is_number() ? code.get<double>() : NAN;
  if (!(std::abs(value) < kLargestWhole) || value != std::floor(value)) {
    output.code_unreadable = true;
    output.code_place = place;
    return;
  }
  if (output.return_code.value_or(0) != 0) return;
  output.return_code = static_cast<int64_t>(value);
  output.code_place = place;
}

// The documents repeat each other: what several say is said once.
void Deny(const std::vector<std::string>& keys, const std::string& who, const std::string& why,
          CaseOutput& output) {
  if (output.evidence.denials.empty()) AddDenial(keys, who, output.evidence, why);
}

void AddRow(const Json& row, const std::string& place, SuiteOutput& output) {
  const std::string name = TextAt(row, "case");
  if (!IsName(name)) {
    output.evidence.gaps.Add(fmt::format("{}: a row does not name its case", place));
    return;
  }
  CaseOutput& of_case = output.cases[name];
  const auto code = row.find("return_code");
  PutCode(code == row.end() ? Json() : *code, place, of_case);
  CheckFigures(row, place, of_case.evidence);
  if (of_case.row.is_null()) {
    of_case.row = row;
    of_case.row_place = place;
  } else if (of_case.row_place == place) {
    of_case.evidence.gaps.Add(fmt::format("{} has two rows of {}", place, name));
  }
  std::vector<std::string> denied;
  if (!IsTrue(row, "overall_pass")) denied.emplace_back("overall_pass");
  for (const char* key : {"decode_pass", "kv_content_consistency_pass"}) {
    if (row.contains(key) && !IsTrue(row, key)) denied.emplace_back(key);
  }
  const std::string status = TextAt(row, "quality_status", "PASS");
  if (status != "PASS") denied.emplace_back("quality_status");
  const std::string reason = OnlyUtf8(TextAt(row, "failure_reason"));
  if (denied.empty() && !reason.empty()) denied.emplace_back("failure_reason");
  Deny(denied, place, reason, of_case);
}

void ReadSummary(const std::string& text, const std::string& shown, SuiteOutput& output) {
  const Json document = ParseJson(OnlyUtf8(text), shown);
  const auto rows = document.is_object() ? document.find("rows") : document.end();
  if (!document.is_object() || rows == document.end() || !rows->is_array()) {
    return output.evidence.gaps.Add(shown + ": it lists no rows");
  }
  bool all = true;
  for (const Json& row : *rows) {
    AddRow(row, shown, output);
    all &= row.is_object() && IsTrue(row, "overall_pass");
  }
  const auto total = document.find("total_cases");
  if (total != document.end() && *total != rows->size()) {
    output.evidence.gaps.Add(fmt::format("{}: total_cases is {}, but it has {} rows", shown,
                                         ShowJson(*total), rows->size()));
  }
  // Where a row says no, that case fails by itself.
  if (all && !IsTrue(document, "overall_pass")) {
    AddDenial({"overall_pass"}, shown + ", of the whole suite,", output.evidence);
  }
}

// "1. case=runtime_full, mode=full, pass=false, rc=1, decode=..." Returns whether the line passes;
// nothing for other lines.
std::optional<bool> ReadLine(std::string_view line, const std::string& shown, SuiteOutput& output) {
  const size_t at = line.find(". case=");
  if (at == std::string_view::npos || line.find_first_not_of("0123456789") != at) return {};
  const auto field = [&](std::string_view key) {
    const size_t begin = line.find(key);
    if (begin == std::string_view::npos) return std::string();
    const std::string_view rest = line.substr(begin + key.size());
    return std::string(rest.substr(0, rest.find(',')));
  };
  Json row = {{"case", field(". case=")}, {"overall_pass", field(" pass=") == "true"}};
  if (const auto code = ParseNumber<int64_t>(field(" rc="))) row["return_code"] = *code;
  AddRow(row, shown, output);
  return row["overall_pass"].get<bool>();
}

// The suite's summary.md: a line for each case between a head that counts them and an end.
void ReadText(const std::string& text, const std::string& shown, SuiteOutput& output) {
  uint64_t lines = 0;
  bool all = true, denied = false, ended = false;
  std::string total;
  ForEachLine(text, [&](std::string_view raw) {
    const std::string_view line = Strip(raw);
    if (const std::optional<bool> pass = ReadLine(line, shown, output)) {
      ++lines;
      all &= *pass;
    }
    const auto value = [&](std::string_view key) {
      return StartsWith(line, key) ? std::string(Strip(line.substr(key.size()))) : std::string();
    };
    const std::string pass = value("- overall_pass:");
    denied |= !pass.empty() && pass != "true";
    if (total.empty()) total = value("- total_cases:");
    ended |= StartsWith(line, "- cases_jsonl:");
  });
  if (!ended || total != std::to_string(lines)) {
    output.evidence.gaps.Add(fmt::format(
        "{} was cut: total_cases is {}, it has lines of {}, and its "
        "end is {}",
        shown, total.empty() ? "missing" : OnlyUtf8(total), lines, ended ? "there" : "missing"));
  }
  if (all && denied) AddDenial({"overall_pass"}, shown + ", of the whole suite,", output.evidence);
}

}  // namespace

bool IsSuiteSummary(std::string_view text) {
  try {
    const Json document = ParseJson(OnlyUtf8(text), kSummary);
    if (!document.is_object() || !document.contains("overall_pass")) return false;
    const auto rows = document.find("rows");
    return rows != document.end() && rows->is_array();
  } catch (const Error&) {
    return false;
  }
}

SuiteOutput ReadSuiteSummary(const std::string& text, const std::string& shown) {
  if (IsOurs(text)) {
    throw Error(Finding::kMissingRecord, "kvtool wrote this summary, not the engine's suite")
        .File(shown)
        .Hint("'kvtool report' shows it");
  }
  SuiteOutput output;
  ReadSummary(text, shown, output);
  return output;
}

SuiteOutput ReadSuiteOutput(const LogFolder& folder) {
  SuiteOutput output;
  // One that cannot be read speaks for none of the cases.
  const auto read = [&](const char* name, const auto& use) {
    try {
      if (const auto text = folder.Text(name)) use(*text, folder.Shown(name));
    } catch (const Error& error) {
      output.evidence.gaps.Add(error.what());
    }
  };
  bool is_ours = false;
  read(kSummary, [&](const std::string& text, const std::string& shown) {
    is_ours = IsOurs(text);
    if (!is_ours) ReadSummary(text, shown, output);
  });
  if (is_ours) {
    output.notes.push_back(folder.Shown(kSummary) +
                           " was written by kvtool: what the suite wrote there is gone");
    return output;
  }
  read(kRows, [&](const std::string& text, const std::string& shown) {
    ForEachLine(text, [&](std::string_view line) {
      if (!Strip(line).empty()) AddRow(ParseJson(OnlyUtf8(line), shown), shown, output);
    });
  });
  read(kText,
       [&](const std::string& text, const std::string& shown) { ReadText(text, shown, output); });
  return output;
}

}  // namespace kv::mnn::logs
