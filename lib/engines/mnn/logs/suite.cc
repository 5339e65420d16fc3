// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Searches logs and documents for evidence against a case: broken lines, words of dying programs,
// cells that are not numbers.
#include "lib/engines/mnn/logs/suite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv::mnn::logs {

namespace {

constexpr size_t kMostExamples = 3;
constexpr size_t kMaxSeen = 4096;
constexpr size_t kComparedBytes = 512;  // bytes of a line that are compared to find repetitions
constexpr size_t kMaxWords = 120;

constexpr std::string_view kLogEndings[] = {".log", ".err", ".out", ".stderr", ".stdout"};
constexpr std::string_view kDeaths[] = {
    "FAIL:",      "error:",    "Error:",         "Traceback",    "No such file",
    "not found",  "Aborted",   "core dumped",    "Killed",       "Segmentation fault",
    "terminate ", "Bus error", "not executable", "out of memory"};

// The analyzer prints these, but its verdict includes them only if the report asks for consistency.
constexpr std::string_view kPartsOfConsistency[] = {
    "kv_restore_activity_pass", "kv_fallback_clean_pass", "kv_async_activity_pass",
    "kv_invalid_log_pass"};

bool HasFigures(std::string_view column) {
  return column == kSpeedColumn || column.starts_with("h2o_");
}

// Returns the part after `<br>` of a speed cell, and other cells unchanged.
std::string_view FigureText(std::string_view column, std::string_view cell) {
  constexpr std::string_view kBreak = "<br>";
  const size_t at = column == kSpeedColumn ? cell.find(kBreak) : std::string_view::npos;
  return at == std::string_view::npos ? cell : cell.substr(at + kBreak.size());
}

// Returns true for a number. A name with a digit in it is not one, as in the engine's tools.
bool BeginsWithNumber(std::string_view text) {
  text = Strip(text);
  return text.find_first_of("0123456789.+-") == 0 && FirstNumber(text).has_value();
}

}  // namespace

void Trouble::Add(std::string what) {
  ++count;
  if (examples.size() < kMostExamples) examples.push_back(std::move(what));
}

std::string Trouble::Text() const {
  std::string text = fmt::format("{}", fmt::join(examples, "; "));
  if (count > examples.size()) text += fmt::format("; and {} more", count - examples.size());
  return text;
}

void Damage::AddBench(std::string_view text, std::string_view shown) { Add(text, shown, true); }
void Damage::AddOther(std::string_view text, std::string_view shown) { Add(text, shown, false); }

void Damage::Add(std::string_view text, std::string_view shown, bool again) {
  if (!read_.insert(std::string(shown)).second) return;
  ForEachInvalidLine(text, [&](std::string_view line) {
    const bool is_new = seen_.size() >= kMaxSeen ||
                        seen_.insert(std::string(Strip(line.substr(0, kComparedBytes)))).second;
    if (is_new || again) AddInvalidLine(line, shown, lines_);
  });
}

void Damage::AddFolder(const LogFolder& folder, int depth) {
  for (const std::string& name : folder.Files(IsLog)) {
    const std::string shown = folder.Shown(name);
    if (read_.find(shown) == read_.end()) AddOther(*folder.Text(name), shown);
  }
  if (depth == 0) return;
  for (const std::string& name : folder.Folders()) AddFolder(folder.Sub(name), depth - 1);
}

bool IsLog(std::string_view name) {
  return std::any_of(std::begin(kLogEndings), std::end(kLogEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string LastWords(std::string_view log) {
  std::string words;
  const auto keep = [&](std::string_view line) {
    words = FirstCodePoints(OnlyUtf8(Strip(line.substr(0, 4 * kMaxWords))), kMaxWords);
  };
  ForEachInvalidLine(log, keep);
  const std::string clean = OnlyUtf8(log);
  ForEachLine(clean, [&](std::string_view line) {
    const bool dies =
        std::any_of(std::begin(kDeaths), std::end(kDeaths),
                    [&](std::string_view death) { return ContainsIgnoringCase(line, death); });
    if (dies) keep(line);
  });
  return words;
}

void CheckCells(const BenchTable& table, Evidence& evidence) {
  // The parser writes this column last, so a row without it was cut.
  for (size_t row = 0; table.HasColumn("log_file") && row < table.size(); ++row) {
    if (!table.Cell(row, "log_file").empty()) continue;
    evidence.gaps.Add(fmt::format("row {} of the table is cut", row + 1));
  }
  for (const std::string& column : table.Columns()) {
    if (!HasFigures(column)) continue;
    for (size_t row = 0; row < table.size(); ++row) {
      const std::string_view cell = table.Cell(row, column);
      if (table.IsHeaderAgain(row)) continue;
      const std::string_view log = table.Cell(row, "log_file");
      const auto place = [&] {
        return fmt::format("{} row {}: {}", log.empty() ? "the table" : OnlyUtf8(log), row + 1,
                           OnlyUtf8(column));
      };
      if (HasNonFinite(cell)) {
        evidence.non_finite.Add(
            fmt::format("{} is '{}'", place(), FirstCodePoints(cell, kShownCell)));
      } else if (!BeginsWithNumber(FigureText(column, cell))) {
        evidence.gaps.Add(Strip(cell).empty()
                              ? place() + " is empty"
                              : fmt::format("{} is '{}', which is not a number", place(),
                                            FirstCodePoints(cell, kShownCell)));
      }
    }
  }
}

void CheckFigures(const GateBullets& bullets, const std::string& shown, Evidence& evidence) {
  for (const auto& [key, value] : bullets) {
    if (!HasNonFinite(value) || value.find_first_of(" ,[") != std::string::npos) continue;
    evidence.non_finite.Add(
        fmt::format("{}: {} is {}", shown, key, FirstCodePoints(value, kShownCell)));
  }
}

void CheckFigures(const Json& value, const std::string& shown, Evidence& evidence,
                  const std::string& name) {
  if (value.is_structured()) {
    for (const auto& item : value.items()) CheckFigures(item.value(), shown, evidence, item.key());
    return;
  }
  // ParseJson returns such numbers as texts.
  const auto quoted = value.is_string() ? WholeNumber(value.get_ref<const std::string&>())
                                        : std::optional<double>();
  const bool is_number = value.is_number_float() || quoted;
  if (!is_number || std::isfinite(quoted ? *quoted : value.get<double>())) return;
  evidence.non_finite.Add(fmt::format("{}: {} is {}", shown, OnlyUtf8(name),
                                      value.is_string() ? value.get<std::string>() : "no number"));
}

std::vector<std::string> DeniedBy(const GateBullets& bullets) {
  std::vector<std::string> keys;
  if (bullets.empty()) return keys;
  if (Lower(TextAt(bullets, "overall_pass")) != "true") keys.emplace_back("overall_pass");
  const bool asks = Lower(TextAt(bullets, "require_kv_content_consistency")) == "true";
  for (const auto& [key, value] : bullets) {
    if (key == "overall_pass" || key == "lossless_selected_pass") continue;
    const bool is_part = std::find(std::begin(kPartsOfConsistency), std::end(kPartsOfConsistency),
                                   key) != std::end(kPartsOfConsistency);
    if (is_part && !asks) continue;
    if (key.ends_with("_pass") && Lower(value) != "true") keys.push_back(key);
    if (key == "quality_status" && Lower(value) != "pass") keys.push_back(key);
  }
  return keys;
}

std::vector<std::string> DeniedBy(const Json& report) {
  std::vector<std::string> keys;
  if (!report.is_object() || report.empty()) return keys;
  const auto is_true = [](const Json& value) { return value.is_boolean() && value.get<bool>(); };
  if (!report.contains("overall_pass") || !is_true(report["overall_pass"])) {
    keys.emplace_back("overall_pass");
  }
  for (const auto& item : report.items()) {
    const bool is_verdict = item.key().ends_with("_pass") && !item.key().starts_with("require_");
    const bool is_list = item.key().ends_with("_failures") && item.value().is_array();
    if (item.key() == "overall_pass" || (!is_verdict && !is_list)) continue;
    if (is_list ? !item.value().empty() : !is_true(item.value())) keys.push_back(item.key());
  }
  return keys;
}

void AddDenial(const std::vector<std::string>& keys, const std::string& who, Evidence& evidence,
               std::string_view why) {
  if (keys.empty()) return;
  constexpr size_t kMost = 6;
  std::vector<std::string> named(keys.begin(), keys.begin() + std::min(keys.size(), kMost));
  std::string text = OnlyUtf8(fmt::format("{} says no: {}", who, fmt::join(named, ", ")));
  if (keys.size() > kMost) text += fmt::format(" and {} more", keys.size() - kMost);
  if (!why.empty()) text += fmt::format(", '{}'", FirstCodePoints(why, kMaxWords));
  evidence.denials.push_back({OnlyUtf8(keys.front()), std::move(text)});
}

namespace {

constexpr size_t kConsoleTail = 240;  // lines that the suite reads at the end of a console log
constexpr size_t kMaxLine = 4096;
constexpr std::string_view kFailureWords[] = {
    "FAIL:",        "error:",         "Error:",    "Traceback",
    "No such file", "not executable", "not found", "Segmentation fault",
    "Aborted"};

// A row in the suite's summary.md: texts unchanged, numbers with a fixed number of decimals.
constexpr std::string_view kRuntimeLine =
    "case={case}, mode={mode}, pass={overall_pass}, rc={return_code}, "
    "decode={decode_gate_tps:4}/{decode_baseline:4}({decode_aggregation}), "
    "drop={decode_drop_ratio:6}/{decode_drop_target:6}, lossy={lossy_best:4}, "
    "lossless={lossless_selected_value:4}, decomp_us={runtime_decomp_best_us:4}, "
    "async_wait_us={runtime_async_wait_best_us:4}, "
    "async_wait_headroom={runtime_async_wait_headroom_ratio:4}, queue={runtime_queue_peak_best:4}, "
    "fallback={runtime_fallback_best:4}, cache_hit={runtime_decode_cache_hit_best:4}, "
    "cache_miss={runtime_decode_cache_miss_best:4}, kv_consistency={kv_content_consistency_pass}, "
    "kv_invalid_logs={kv_invalid_log_count:0}, summary=`{summary}`";
constexpr std::string_view kDemoLine =
    "case={case}, mode={mode}, pass={overall_pass}, rc={return_code}, "
    "decode={baseline_decode_tps_avg:4}->{candidate_decode_tps_avg:4}, "
    "drop={decode_drop_ratio:6}/{decode_drop_target:6}, lossy={candidate_lossy_ratio_avg:4}, "
    "lossless={candidate_lossless_ratio_avg:4}, total={candidate_runtime_total_ratio_avg:4}, "
    "decomp_us={runtime_decomp_best_us:4}, cache_hit={decode_cache_hit_best:4}, "
    "run_order={run_order}, summary=`{summary}`";

constexpr const char *kSummary = "summary.json", *kRows = "cases.jsonl", *kText = "summary.md";
constexpr size_t kMaxName = 200;
constexpr size_t kHeader = 4096;  // bytes at the start of a summary that hold its schema

bool IsOurs(const std::string& text) { return Contains(text.substr(0, kHeader), "\"kvtool.gate/"); }

// Returns true if the name is that of a folder of the suite, and not a path out of it.
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

// Adds a denial; if several documents report the same one, it is added once.
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
    of_case.evidence.gaps.Add(fmt::format("{} has two rows for {}", place, name));
  }
  std::vector<std::string> denied;
  if (gate::FlagIn(row, "overall_pass") != true) denied.emplace_back("overall_pass");
  for (const char* key : {"decode_pass", "kv_content_consistency_pass"}) {
    if (row.contains(key) && gate::FlagIn(row, key) != true) denied.emplace_back(key);
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
    all &= gate::FlagIn(row, "overall_pass") == true;
  }
  const auto total = document.find("total_cases");
  if (total != document.end() && *total != rows->size()) {
    output.evidence.gaps.Add(fmt::format("{}: total_cases is {}, but it has {} rows", shown,
                                         ShowJson(*total), rows->size()));
  }
  // A row with a negative verdict fails its own case.
  if (all && gate::FlagIn(document, "overall_pass") != true) {
    AddDenial({"overall_pass"}, shown + ", of the whole suite,", output.evidence);
  }
}

// Reads a line "1. case=runtime_full, mode=full, pass=false, rc=1, decode=...". Returns true if it
// passes; nothing for other lines.
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

// Reads the suite's summary.md: a line for each case between a head that counts them and an end.
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
      return line.starts_with(key) ? std::string(Strip(line.substr(key.size()))) : std::string();
    };
    const std::string pass = value("- overall_pass:");
    denied |= !pass.empty() && pass != "true";
    if (total.empty()) total = value("- total_cases:");
    ended |= line.starts_with("- cases_jsonl:");
  });
  if (!ended || total != std::to_string(lines)) {
    output.evidence.gaps.Add(fmt::format(
        "{} is incomplete: total_cases: {}; listed cases: {}; last line: {}", shown,
        total.empty() ? "missing" : OnlyUtf8(total), lines, ended ? "present" : "missing"));
  }
  if (all && denied) AddDenial({"overall_pass"}, shown + ", of the whole suite,", output.evidence);
}

// Returns why a case failed; `otherwise` if its return code does not explain it.
std::string FailureReason(const SuiteCase& c, bool pass, std::string otherwise) {
  if (pass) return {};
  if (c.return_code == 0) return otherwise;
  return c.console_text ? ConsoleFailure(*c.console_text) : "console log missing";
}

// Returns a figure as the suite shows it; figures that were not measured are null in kvtool's rows.
std::string Shown(const Json& row, std::string_view field) {
  constexpr const char* kUnknown = "n/a";
  if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
    const auto number = gate::NumberIn(row, field.substr(0, colon));
    return number ? Fixed(*number, field[colon + 1] - '0') : kUnknown;
  }
  const Json* found = gate::Find(row, field);
  if (found == nullptr) return kUnknown;
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace

std::string ConsoleFailure(std::string_view console_log) {
  std::deque<std::string> tail;
  ForEachLine(console_log, [&](std::string_view line) {
    tail.emplace_back(Strip(OnlyUtf8(line.substr(0, kMaxLine))));
    if (tail.size() > kConsoleTail) tail.pop_front();
  });
  const auto names_failure = [](const std::string& line) {
    return std::any_of(std::begin(kFailureWords), std::end(kFailureWords),
                       [&](std::string_view word) { return Contains(line, word); });
  };
  const auto named = std::find_if(tail.rbegin(), tail.rend(), names_failure);
  if (named != tail.rend()) return *named;
  const auto any = std::find_if(tail.rbegin(), tail.rend(),
                                [](const std::string& line) { return !line.empty(); });
  return any != tail.rend() ? *any : "unknown failure";
}

Json RuntimeRow(const SuiteCase& c) {
  const GateBullets& bullets = c.bullets;
  const auto is_true = [&](std::string_view key) { return Lower(TextAt(bullets, key)) == "true"; };
  const bool exists = !bullets.empty() || !c.summary_text.value_or("").empty();
  const bool pass = c.return_code == 0 && is_true("overall_pass");
  const std::string status = TextAt(bullets, "quality_status", "unknown");
  Json row = {{"suite", "runtime"},
              {"case", c.name},
              {"mode", c.mode},
              {"return_code", c.return_code},
              {"summary_exists", exists},
              {"quality_gate_found", !bullets.empty()},
              {"failure_reason",
               FailureReason(c, pass,
                             !exists           ? "summary missing"
                             : bullets.empty() ? "quality gate section missing"
                                               : "quality gate failed: status=" + status)},
              {"overall_pass", pass},
              {"summary", c.folder + "/summary.md"},
              {"console_log", c.console_log}};
  for (const RowKey& key : kRuntimeRowKeys) {
    const std::string_view name = key.name;
    const std::string text = TextAt(bullets, name);
    if (name == "quality_status") {
      row[key.name] = text;
    } else if (name == "decode_aggregation") {
      row[key.name] = TextAt(bullets, name, "best");
    } else if (name.ends_with("_warn") || name.ends_with("_pass")) {
      row[key.name] = is_true(name);
    } else {
      const bool older = name == "decode_gate_tps" && !bullets.contains(name);
      row[key.name] = LooseNumber(older ? TextAt(bullets, "decode_best") : text);
    }
  }
  return row;
}

Json DemoRow(const SuiteCase& c) {
  Json report = Json::object();
  if (c.report_text) {
    try {
      report = ParseJson(OnlyUtf8(*c.report_text), "llm_demo_report.json");
    } catch (const Error&) {
      report = Json::object();  // as the suite does; a note reports the unreadable document
    }
  }
  const bool pass = c.return_code == 0 && TruthAt(report, "overall_pass");
  Json row = {
      {"suite", "llm_demo"},
      {"case", c.name},
      {"mode", c.mode},
      {"return_code", c.return_code},
      {"failure_reason",
       FailureReason(c, pass, c.report_text ? "llm_demo gate failed" : "report json missing")},
      {"overall_pass", pass},
      {"summary", c.folder + "/llm_demo_report.md"},
      {"report_json", c.folder + "/llm_demo_report.json"},
      {"console_log", c.console_log}};
  for (const RowKey& key : kDemoRowKeys) {
    const std::string_view name = key.name;
    if (name == "decode_pass") {
      row[key.name] = TruthAt(report, name);
    } else if (name == "run_order") {
      row[key.name] = TextAt(report, name);
    } else {
      row[key.name] = NumberAt(report, name);
    }
  }
  return row;
}

std::string SuiteLine(const Json& row) {
  std::string_view rest = TextAt(row, "suite") == "runtime" ? kRuntimeLine : kDemoLine;
  std::string line;
  for (size_t open = rest.find('{'); open != std::string_view::npos; open = rest.find('{')) {
    const size_t close = rest.find('}');
    line += rest.substr(0, open);
    line += Shown(row, rest.substr(open + 1, close - open - 1));
    rest.remove_prefix(close + 1);
  }
  line += rest;
  const std::string reason = Shown(row, "failure_reason");
  return reason.empty() ? line : line + ", reason=" + reason;
}

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
  // A document that cannot be read has no evidence for any case.
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
