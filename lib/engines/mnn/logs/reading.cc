// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Finds and reads the logs at a path: a suite's output, one case, or loose logs.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/logs.h"

namespace kv::mnn::logs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConsole = ".console.log";
// as many as a configuration may have; the suite has fewer than 20
constexpr size_t kMostCases = 1000;

bool IsCaseName(std::string_view name) { return name.starts_with("runtime_") || IsDemoName(name); }

std::string FindMode(std::string_view name) {
  for (const SuiteCaseName& known : kSuiteCases) {
    if (known.name == name) return std::string(known.mode);
  }
  for (const char* mode : {"probe", "full", "store"}) {
    if (name.ends_with(std::string("_") + mode)) return mode;
  }
  return {};
}

// Returns the cases that a suite's output folder holds or its documents name: known ones in the
// suite's order, then others.
std::vector<std::string> CasesIn(const LogFolder& folder, const SuiteOutput& output) {
  std::vector<std::string> found = folder.Folders();
  for (const std::string& file : folder.Files()) {
    if (file.ends_with(kConsole)) found.push_back(file.substr(0, file.size() - kConsole.size()));
  }
  found.erase(std::remove_if(found.begin(), found.end(),
                             [](const std::string& name) { return !IsCaseName(name); }),
              found.end());
  for (const auto& [name, of_case] : output.cases) found.push_back(name);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  if (found.size() > kMostCases) {
    throw Error(Finding::kLimit, "has {} cases; at most {} are judged", found.size(), kMostCases)
        .File(folder.shown());
  }
  const auto rank = [](const std::string& name) {
    return std::find_if(std::begin(kSuiteCases), std::end(kSuiteCases),
                        [&](const SuiteCaseName& known) { return known.name == name; });
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  return found;
}

void RequireKeys(std::span<const RowKey> keys, const Json& row, const std::string& place,
                 Evidence& evidence) {
  std::vector<std::string_view> missing;
  for (const RowKey& key : keys) {
    if (key.required && gate::Find(row, key.name) == nullptr) missing.emplace_back(key.name);
  }
  if (missing.empty()) return;
  evidence.gaps.Add(fmt::format(
      "{}: the row of {} was cut: it lacks {}{}", place, TextAt(row, "case"), missing.front(),
      missing.size() == 1 ? "" : fmt::format(" and {} more figures", missing.size() - 1)));
}

// Returns the facts in a row. The suite keeps only the largest value of the rows.
RuntimeFacts ReadRowFacts(const Json& row) {
  const auto largest = [&](std::string_view key) {
    return row.contains(std::string(key)) ? std::optional(NumberAt(row, key)) : std::nullopt;
  };
  RuntimeFacts facts;
  for (const RowFigure& figure : kRowFigures)
    facts.figures[figure.key()].most = largest(figure.best);
  facts.selected_lossless = largest("lossless_selected_value");
  facts.decode.most = largest("decode_best");
  facts.decode.mean = largest("decode_gate_tps");
  facts.notes.emplace_back(
      "judged by summary.json alone, which has only the largest value of each figure, and only an "
      "offline estimate of the ratio of compressed bytes");
  return facts;
}

// Returns the row under the keys of the engine's report.
GateBullets ReadRowBullets(const Json& row) {
  GateBullets bullets;
  for (const auto& item : row.items()) {
    const Json& value = item.value();
    if (value.is_primitive() && !value.is_null()) {
      bullets[item.key()] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return bullets;
}

// Reads a row of the suite's summary.json at `place`, without the folder of its case.
CaseLogs ReadRow(const Json& row, const std::string& place, SuiteCase suite_case) {
  CaseLogs logs{std::move(suite_case), {}};
  logs.row = row;
  const SuiteCase& c = logs.suite_case;
  if (IsDemoName(c.name)) {
    RequireKeys(kDemoRowKeys, row, place, logs.evidence);
    logs.report = row;
    // The suite applies these options; its rows do not repeat them.
    const DemoOptions asked;
    logs.report["require_baseline_decode"] = asked.require_baseline_decode;
    logs.report["require_runtime_decomp"] = asked.require_runtime_decomp;
    logs.report["runtime_decomp_pass"] = NumberAt(row, "runtime_decomp_best_us") > 0;
    return logs;
  }
  logs.options = SuiteOptions(c.name);
  logs.report_missing = !TruthAt(row, "summary_exists") || !TruthAt(row, "quality_gate_found");
  if (logs.report_missing) return logs;
  RequireKeys(kRuntimeRowKeys, row, place, logs.evidence);
  logs.bullets = ReadRowBullets(row);
  logs.options.decode_baseline = NumberAt(row, "decode_baseline");
  const double target = NumberAt(row, "decode_drop_target", logs.options.decode_drop_target);
  if (target > logs.options.decode_drop_target) {
    logs.notes.push_back(
        fmt::format("the suite was run with decode_drop_target {:.6g}, but its own is {:.6g}",
                    target, logs.options.decode_drop_target));
  }
  logs.options.decode_drop_target = target;
  logs.facts = ReadRowFacts(row);
  return logs;
}

void Append(const Trouble& from, Trouble& to) {
  for (const std::string& example : from.examples) to.Add(example);
  to.count += from.count - from.examples.size();
}

// Adds what the suite's own documents say about a case and about the whole run.
void AddSuiteOutput(const SuiteOutput& output, bool code_given, CaseLogs& logs) {
  const auto found = output.cases.find(logs.suite_case.name);
  std::vector<const Evidence*> sources = {&output.evidence};
  if (found != output.cases.end()) {
    sources.push_back(&found->second.evidence);
    if (found->second.code_unreadable && !code_given) {
      logs.evidence.gaps.Add(fmt::format("{}: the return_code of {} is not a number",
                                         found->second.code_place, logs.suite_case.name));
    }
  } else if (!output.cases.empty()) {
    logs.notes.push_back("the suite's summary does not name this case: it may be of an older run");
  }
  for (const Evidence* source : sources) {
    Append(source->gaps, logs.evidence.gaps);
    Append(source->non_finite, logs.evidence.non_finite);
    logs.evidence.denials.insert(logs.evidence.denials.end(), source->denials.begin(),
                                 source->denials.end());
  }
}

// If no return code is known, the script's message of failure replaces it.
void AddConsoleVerdict(bool code_known, CaseLogs& logs) {
  const SuiteCase& c = logs.suite_case;
  if (!c.console_text) return;
  logs.evidence.damage.AddOther(*c.console_text, c.console_log);
  if (code_known) return;
  const std::string last = ConsoleFailure(*c.console_text);
  if (!last.starts_with("FAIL:") && !last.starts_with("Traceback")) return;
  AddDenial({"console_log"}, c.console_log + ", with no return code known,", logs.evidence, last);
}

std::vector<CaseLogs> ReadSuite(const LogFolder& folder, const SuiteOutput& output,
                                const EngineLogsInput& input) {
  std::vector<CaseLogs> all;
  const bool is_folder = folder.exists();  // false: only the suite's summary.json exists
  for (const std::string& name : CasesIn(folder, output)) {
    SuiteCase c;
    c.name = name;
    c.mode = FindMode(name);
    c.folder = folder.Shown(name);
    c.console_log = folder.Shown(name + std::string(kConsole));
    c.console_text = folder.Text(name + std::string(kConsole));
    const auto code = input.return_codes.find(name);
    const auto written = output.cases.find(name);
    const bool code_given = code != input.return_codes.end();
    std::string code_place = "--return-codes";
    if (code_given) {
      c.return_code = code->second;
    } else if (written != output.cases.end()) {
      c.return_code = written->second.return_code.value_or(0);
      code_place = written->second.code_place;
    }
    all.push_back(!is_folder ? ReadRow(written->second.row, written->second.row_place, std::move(c))
                  : IsDemoName(name) ? ReadDemoCase(folder.Sub(name), std::move(c))
                                     : ReadRuntimeCase(folder.Sub(name), std::move(c)));
    CaseLogs& logs = all.back();
    logs.code_place = std::move(code_place);
    const bool code_written = written != output.cases.end() && written->second.return_code;
    AddConsoleVerdict(code_given || code_written, logs);
    AddSuiteOutput(output, code_given, logs);
  }
  return all;
}

Error NoCase(const std::string& name) {
  return Error(Finding::kUsage, "return codes: no case '{}' in the logs", Escaped(name));
}

// Reads the suite's documents about its cases: those of a folder, or one summary.json.
SuiteOutput ReadSuiteWords(const LogFolder& folder, const fs::path& path) {
  if (folder.exists() || !folder.shown().ends_with(".json")) return ReadSuiteOutput(folder);
  const std::string text = ReadLog(path, folder.shown());
  if (IsSuiteSummary(text)) return ReadSuiteSummary(text, folder.shown());
  // A cut document reports that itself; its first line does not make it a log. Other logs may be
  // JSON lines.
  if (text.starts_with("{\n") || text.starts_with("{\r\n"))
    ParseJson(OnlyUtf8(text), folder.shown());
  return {};
}

// Reads a folder or file of logs without a suite, as one case.
CaseLogs ReadLooseLogs(const EngineLogsInput& input, const std::string& shown) {
  SuiteCase c;
  c.name = fs::path(shown).filename().string();
  if (c.name.empty()) c.name = fs::path(shown).parent_path().filename().string();
  c.folder = shown;
  const LogFolder folder(input.path, shown);
  const bool is_json = !folder.exists() && shown.ends_with(".json");
  const std::string report = is_json ? ReadLog(input.path, shown) : "";
  const bool alone = !report.empty() && IsDemoReport(report);
  const bool demo = alone || HoldsDemo(folder);
  if (demo && !IsDemoName(c.name)) c.name = "llm_demo_" + c.name;
  for (const auto& [name, code] : input.return_codes) {
    if (name != c.name) throw NoCase(name);
    c.return_code = code;
  }
  if (demo) {
    c.mode = FindMode(c.name);
    return alone ? ReadDemoReport(report, shown, std::move(c)) : ReadDemoCase(folder, std::move(c));
  }
  AnalyzerOptions options = SuiteOptions(c.name);
  for (const auto& [name, value] : input.options) SetAnalyzerOption(name, value, options);
  c.mode = options.runtime_mode;
  return ReadBenchLogs(input, shown, std::move(c), options);
}

std::string ShownPath(const EngineLogsInput& input) {
  std::string shown =
      OnlyUtf8(input.shown_as.empty() ? input.path.generic_string() : input.shown_as);
  while (shown.size() > 1 && shown.back() == '/') shown.pop_back();
  return shown;
}

}  // namespace

bool IsDemoName(std::string_view name) { return name.starts_with("llm_demo"); }

bool HoldsSuite(const fs::path& path) {
  return !CasesIn(LogFolder(path, OnlyUtf8(path.generic_string())), {}).empty();
}

LogsRead ReadEngineLogs(const EngineLogsInput& input) {
  LogsRead read;
  read.shown = ShownPath(input);
  std::error_code error;
  if (!fs::exists(input.path, error)) {
    throw Error(Finding::kOpenFailed, "no such file or folder").File(read.shown);
  }
  AnalyzerOptions checked;
  for (const auto& [name, value] : input.options) SetAnalyzerOption(name, value, checked);
  const LogFolder folder(input.path, read.shown);
  const SuiteOutput output = ReadSuiteWords(folder, input.path);
  if (CasesIn(folder, output).empty()) {
    read.cases.push_back(ReadLooseLogs(input, read.shown));
    return read;
  }
  read.cases = ReadSuite(folder, output, input);
  read.notes = output.notes;
  const auto has = [&](std::string_view name) {
    return std::any_of(read.cases.begin(), read.cases.end(),
                       [&](const CaseLogs& logs) { return logs.suite_case.name == name; });
  };
  for (const auto& [name, code] : input.return_codes) {
    if (!has(name)) throw NoCase(name);
  }
  for (const SuiteCaseName& known : kSuiteCases) {
    if (!has(known.name)) read.absent_cases.emplace_back(known.name);
  }
  return read;
}

}  // namespace kv::mnn::logs
