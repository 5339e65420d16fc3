// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any text as every kind of log: refused with an error of this project, or judged; what is judged
// can be written.
#include <cmath>
#include <cstdlib>

#include "lib/core/base/error.h"
#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/suite.h"
#include "lib/engines/mnn/logs/truth.h"
#include "lib/study/gate/log_files.h"
#include "lib/study/gate/summary_view.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/engines.h"

namespace {

using namespace kv::mnn::logs;
using kv::gate::Summary;

void Require(bool holds) {
  if (!holds) std::abort();
}

template <typename F>
void Try(F&& use) {
  try {
    use();
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
}

void Judge(const BenchTable& table) {
  if (table.size() == 0) return;
  const AnalyzerOptions options = SuiteOptions("runtime_store");
  const GateBullets bullets = ListGateBullets(Analyze(table, options, {}, {}, {}));
  Require(bullets.count("overall_pass") == 1);
  Evidence evidence;
  CheckCells(table, evidence);
  const RuntimeFacts facts = CollectTableFacts(table, &table);
  // A wait that is not a number gives a row without a wait, never a wait of 0.
  const std::vector<AnalyzerRow> rows = ExactRows(table);
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool has_column = table.HasColumn("h2o_lossless_async_wait_us");
    Require(!has_column || table.IsHeaderAgain(i) || std::isfinite(rows[i].async_wait_us) ||
            evidence.gaps.count + evidence.non_finite.count > 0);
  }
  for (const RuleOutcome& rule : RuntimeRules(facts, bullets, options, {})) {
    Require(rule.status != Status::kPass || std::isnan(rule.rule.limit) || rule.value);
  }
  Require(!RuntimeFigures(facts, {}).empty());
}

void JudgeReport(std::string_view text) {
  const GateBullets bullets = ParseGateBullets(text);
  const AnalyzerOptions options = ReadReportOptions(bullets, SuiteOptions("runtime_full"));
  RuntimeRules(CollectReportFacts(text), bullets, options, {});
  SuiteCase suite_case;
  suite_case.return_code = 1;
  suite_case.console_text = suite_case.summary_text = suite_case.report_text = text;
  suite_case.bullets = bullets;
  Require(!SuiteLine(RuntimeRow(suite_case)).empty() && !SuiteLine(DemoRow(suite_case)).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Try([&] {
    BenchTable table;
    table.AddMarkdown(text, "a.log");
    Judge(table);
  });
  Try([&] {
    BenchTable table;
    table.AddJson(text, "a.json");
    Judge(table);
  });
  Try([&] { Judge(BenchTable::FromCsv(text)); });
  Try([&] { ParseOfflineRatio(text, "offline.json"); });
  Try([&] { JudgeReport(text); });
  Try([&] {
    const Json document = ParseJson(text, "summary.json");
    const Json report = DemoReport(document, "a", document, "b", DemoOptions{});
    DemoRules(report, {}, {}, true);
    DemoRules(document, {}, {}, false);
    Evidence evidence;
    CheckFigures(document, "summary.json", evidence);
    AddDenial(DeniedBy(document), "summary.json", evidence);
    DemoFigures(document, {});
    SummariseBuckets(document);
  });
  Try([&] {
    const std::vector<Summary> summaries(2, kv::gate::ParseSummary(text, "summary.json"));
    const std::string page = kv::gate::SummaryPage(summaries, kv::test::Engine()).Text();
    Require(page.find("<script") == page.rfind("<script"));  // the page has only its own script
    Require(!kv::gate::SummaryJunit(summaries[0], kv::test::Engine()).empty());
  });
  InvalidLines invalid;
  ScanInvalidLines(text, "a.log", invalid);
  const std::string clean = LogText(text);
  Require(clean.find('\0') == std::string::npos);
  // The same text in UTF-16 has the same words.
  if (clean == text && text.find_first_of("\xef\xfe\xff") == std::string_view::npos) {
    std::string wide;
    for (const char c : OnlyUtf8(text)) wide += {c, '\0'};
    InvalidLines found;
    ScanInvalidLines(LogText(wide), "a.log", found);
    Require(found.count == invalid.count);
  }
  LosslessLines lossless;
  ScanLosslessLines(text, lossless);
  DemoRunFiles run;
  run.standard_output = run.metrics_jsonl = text;
  Require(SummariseRuns(Json::array({DemoRun(run)})).contains("overall_pass"));
  return 0;
}
