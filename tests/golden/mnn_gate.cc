// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <map>
#include <sstream>

#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/logs.h"
#include "lib/engines/mnn/logs/suite.h"
#include "tests/golden/golden.h"

namespace kv::golden {
namespace {

namespace fs = std::filesystem;
namespace logs = mnn::logs;
using gate::Json;

const std::string kGate = "mnn/gate/";

std::string Text(Run& run, const std::string& name) {
  return std::string(AsText(run.Load(kGate + name)));
}

Json Document(Run& run, const std::string& name) { return Json::parse(Text(run, name)); }

// Lists the names in the folder with this beginning and end.
std::vector<std::string> Names(std::string_view begin, std::string_view end) {
  std::vector<std::string> names;
  if (!fs::exists(Root() / kGate)) return names;
  for (const auto& entry : fs::directory_iterator(Root() / kGate)) {
    const std::string name = entry.path().filename().string();
    if (name.size() >= begin.size() + end.size() && name.compare(0, begin.size(), begin) == 0 &&
        name.compare(name.size() - end.size(), end.size(), end) == 0) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> LogsIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Root() / kGate / folder)) {
    if (entry.path().extension() == ".log") {
      names.push_back(folder + "/" + entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void CheckTables(Run& run) {
  for (const std::string& csv : Names("logs", ".csv")) {
    const std::string folder = csv.substr(0, csv.size() - 4);
    const auto expected = logs::BenchTable::FromCsv(Text(run, csv));
    INFO(csv);
    if (!run.File(kGate + folder)) continue;
    logs::BenchTable table;
    for (const std::string& name : LogsIn(folder)) table.AddMarkdown(Text(run, name), name);
    CHECK(table.Columns() == expected.Columns());
    REQUIRE(table.size() == expected.size());
    for (const std::string& column : expected.Columns()) {
      for (size_t row = 0; row < table.size(); ++row) {
        CHECK(table.Cell(row, column) == expected.Cell(row, column));
      }
    }
    run.Checked();
  }
}

// Checks one line of the manifest: the analyzer's arguments and its report.
void CheckReport(Run& run, const std::string& report, const std::string& arguments) {
  std::map<std::string, std::string> files;
  logs::AnalyzerOptions options;
  std::istringstream words(arguments);
  for (std::string word, value; words >> word;) {
    const bool has_value = word.find("--require") != 0 && word.find("--strict") != 0;
    if (has_value) words >> value;
    const bool is_file = word == "--csv" || word == "--logs-dir" || word == "--bench-stdout-log" ||
                         word.find("--offline-") == 0;
    if (is_file) {
      files[word] = value;
    } else {
      logs::SetAnalyzerOption(word, has_value ? value : "", options);
    }
  }
  if (!run.File(kGate + report) || !run.File(kGate + files["--csv"])) return;
  const auto offline = [&](const char* flag) {
    std::optional<logs::OfflineRatio> ratio;
    if (files.count(flag) != 0) {
      ratio = logs::ParseOfflineRatio(Text(run, files[flag]), files[flag]);
    }
    return ratio;
  };
  logs::InvalidLines invalid;
  const auto scan = [&](const std::string& name) {
    logs::ScanInvalidLines(Text(run, name), name, invalid);
  };
  if (files.count("--bench-stdout-log") != 0) scan(files["--bench-stdout-log"]);
  if (files.count("--logs-dir") != 0) {
    for (const std::string& name : LogsIn(files["--logs-dir"])) scan(name);
  }
  const auto table = logs::BenchTable::FromCsv(Text(run, files["--csv"]));
  const auto figures = logs::Analyze(table, options, offline("--offline-lossless-json"),
                                     offline("--offline-lossless-online-json"), invalid);
  INFO(report);
  CHECK(logs::ListGateBullets(figures) == logs::ParseGateBullets(Text(run, report)));
  run.Checked();
}

// The suite's case folders contain reports of the same commands, under other names.
void CheckReports(Run& run) {
  const nlohmann::json manifest = run.Json("mnn/manifest.json");
  const nlohmann::json commands = manifest.value(
      nlohmann::json::json_pointer("/files/gate~1/commands"), nlohmann::json::object());
  REQUIRE((!commands.empty() || !std::filesystem::exists(Root() / kGate)));
  const std::map<std::string, std::string> copies = {
      {"gate_pass_store.md", "suite/runtime_store/summary.md"},
      {"gate_fail_full.md", "suite/runtime_full/summary.md"},
      {"gate_headroom_warn.md", "suite/runtime_probe/summary.md"}};
  for (const auto& item : commands.items()) {
    if (item.key().find("gate_") != 0) continue;
    CheckReport(run, item.key(), item.value().get<std::string>());
    const auto copy = copies.find(item.key());
    if (copy != copies.end()) CheckReport(run, copy->second, item.value().get<std::string>());
  }
}

void CheckSuite(Run& run) {
  if (!run.File(kGate + "suite/summary.json")) return;
  const Json summary = Document(run, "suite/summary.json");
  logs::EngineLogsInput input;
  input.path = Root() / kGate / "suite";
  input.shown_as = "suite";
  for (const Json& row : summary.at("rows")) {
    input.return_codes[row.at("case").get<std::string>()] = row.at("return_code").get<int64_t>();
  }
  const logs::EngineVerdict verdict = logs::AnalyzeEngineLogs(input);
  CHECK(verdict.engine_pass == summary.at("overall_pass").get<bool>());
  // Compares each row with the same row of summary.json and of cases.jsonl, including the order of
  // the keys, and checks that summary.md contains the row's line.
  std::istringstream jsonl(Text(run, "suite/cases.jsonl"));
  const std::string markdown = Text(run, "suite/summary.md");
  const Json& rows = summary.at("rows");
  REQUIRE(verdict.cases.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Json& row = verdict.cases[i].logs->row;
    CHECK(row == rows[i]);
    std::string line;
    REQUIRE(std::getline(jsonl, line));
    CHECK(row == Json::parse(line));
    CHECK(markdown.find(". " + logs::SuiteLine(row) + "\n") != std::string::npos);
  }
  run.Checked(3);
}

void CheckDemo(Run& run) {
  if (run.File(kGate + "llm_demo_cli.json")) {
    const Json cli = Document(run, "llm_demo_cli.json");
    CHECK(logs::ParseDemoStdout(cli.at("stdout").get<std::string>()) == cli.at("parsed"));
    run.Checked();
  }
  if (run.File(kGate + "llm_demo_summarize.json")) {
    const Json document = Document(run, "llm_demo_summarize.json");
    CHECK(logs::SummariseRuns(document.at("rows")) == document.at("summary"));
    run.Checked();
  }
  if (!run.File(kGate + "demo_baseline.json")) return;
  const Json baseline = Document(run, "demo_baseline.json");
  for (const std::string& name : Names("demo_candidate_", ".json")) {
    const std::string kind = name.substr(15, name.size() - 15 - 5);
    const Json report = logs::DemoReport(baseline, "demo_baseline.json", Document(run, name), name,
                                         logs::DemoOptions{});
    INFO(name);
    if (!run.File(kGate + "demo_report_" + kind + ".json")) continue;
    CHECK(report == Document(run, "demo_report_" + kind + ".json"));
    run.Checked();
  }
}

}  // namespace

void CheckMnnGate(Run& run) {
  CheckTables(run);
  CheckReports(run);
  CheckSuite(run);
  CheckDemo(run);
}

}  // namespace kv::golden
