// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/logs.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "lib/engines/mnn/logs/demo.h"
#include "tests/support/temp_dir.h"

namespace kv::mnn::logs::logs_test {
namespace {

using gate::CaseResult;

void Write(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// A log with one row per "prompt decode lossy lossless raw comp decomp_us".
struct Row {
  int prompt;
  double decode, deviation, lossy, raw, comp;
  std::string decomp_us;
};
std::string Log(const std::vector<Row>& rows) {
  std::string text =
      "| model | llm_demo | speed(tok/s) | h2o_lossy | h2o_lossless | h2o_lossless_raw_mb | "
      "h2o_lossless_comp_mb | h2o_lossless_decomp_us |\n| --- | --- | --- | --- | --- | --- | --- "
      "| --- |\n";
  for (const Row& r : rows) {
    text += "| m | prompt=" + std::to_string(r.prompt) + "<br>decode=128 | 20.00 ± 0.10<br>" +
            Fixed(r.decode, 2) + " ± " + Fixed(r.deviation, 2) + " | " + Fixed(r.lossy, 3) +
            " ± 0.000 | 1.400 ± 0.000 | " + Fixed(r.raw, 2) + " ± 0.00 | " + Fixed(r.comp, 2) +
            " ± 0.00 | " + r.decomp_us + " ± 0.00 |\n";
  }
  return text;
}

const RuleOutcome& MakeRule(const CaseResult& c, std::string_view metric) {
  for (const RuleOutcome& rule : c.rules) {
    if (rule.rule.metric == metric) return rule;
  }
  FAIL("no rule " << metric << " on " << c.spec.name);
  return c.rules.front();
}

EngineLogsInput Logs(const std::filesystem::path& path) {
  EngineLogsInput input;
  input.path = path;
  input.shown_as = "out";
  return input;
}

}  // namespace

TEST_CASE("numbers are read as the engine's tools read them, and in full beside", "[gate]") {
  CHECK(LooseNumber("3.186 ± 0.000") == 3.186);
  CHECK(LooseNumber("1e-05") == 1);
  CHECK(FirstNumber("1e-05") == 1e-05);
  CHECK(LooseNumber("x -.5 y") == -0.5);
  CHECK(LooseNumber("+-5.") == -5);
  CHECK(LooseNumber("none", 7) == 7);
  CHECK(std::isnan(LooseNumber(" NaN ", 0, true)));
  CHECK(LooseNumber("nan ± nan", 0, true) == 0);
  CHECK(LooseNumber(std::string(400, '9')) == HUGE_VAL);
  CHECK(WholeNumber("12x") == std::nullopt);
}

TEST_CASE("texts are written as Python writes them", "[gate]") {
  CHECK(PythonText("it's") == "\"it's\"");
  CHECK(PythonText("a'b\"c\n\x01") == "'a\\'b\"c\\n\\x01'");
  CHECK(PythonValue(Json::parse(R"([0, 1.0, true, null, "x"])")) == "[0, 1.0, True, None, 'x']");
  CHECK(OnlyUtf8("a\xff\xc2\xb1\xed\xa0\x80z") == "a\u00b1z");
  CHECK(FirstCodePoints("±±±", 2) == "±±");
}

TEST_CASE("a good row does not hide a bad one", "[gate]") {
  test::TempDir dir;
  Write(dir.path() / "logs/run_0001.log", Log({{512, 6.0, 0.05, 3.2, 1.5, 1.2, "13000.00"},
                                               {1024, 5.8, 0.05, 2.4, 1.5, 1.2, "9.00"}}));
  EngineLogsInput input = Logs(dir.path());
  input.options = {{"--runtime-mode", "store"}, {"lossless_target", "1.3"}};
  const EngineVerdict verdict = AnalyzeEngineLogs(input);
  REQUIRE(verdict.cases.size() == 1);
  const CaseResult& c = verdict.cases[0];
  const RuleOutcome& lossy = MakeRule(c, "lossy_best");
  CHECK(lossy.engine_value == 3.2);
  CHECK(lossy.engine_pass == true);
  CHECK(lossy.value == 2.4);
  CHECK(lossy.status == Status::kFail);
  CHECK(lossy.where.log == "out/logs/run_0001.log row 2");
  // The engine prints 1.4, but its byte counts give 1.25.
  const RuleOutcome& lossless = MakeRule(c, "lossless_selected_value");
  CHECK(lossless.engine_pass == true);
  CHECK(lossless.value == Approx(1.25));
  CHECK(lossless.status == Status::kFail);
  CHECK(MakeRule(c, "kv_content_consistency_pass").status == Status::kNotRun);
  CHECK(verdict.engine_pass);
  CHECK(verdict.status == Status::kFail);
  CHECK(c.status == Status::kFail);
  CHECK(c.rules[0].margin == Approx(-0.6));
  CHECK(c.logs->row.at("lossy_best") == 3.2);
}

TEST_CASE("a difference below the noise of the baselines is no verdict", "[gate]") {
  const auto report = [](double baseline) {
    return "# H2O final Summary\n\n- Rows: 1\n- Avg lossy ratio: 3.2\n- Avg lossless raw MB: 2.0\n"
           "- Avg lossless comp MB: 1.0\n\n## Pareto Top-5 (by selected total then decode)\n\n"
           "1. total=4.5, decode=5.70, lossy=3.2000, lossless=1.4010, log=`a.log`\n\n"
           "## Quality Gate\n\n- quality_status: PASS\n- lossy_pass: true\n- overall_pass: true\n"
           "- decode_baseline: " +
           Fixed(baseline, 4) + "\n- decode_drop_target: 0.05\n- decode_pass: true\n";
  };
  test::TempDir dir;
  Write(dir.path() / "runtime_full/summary.md", report(6.0));
  const auto alone = AnalyzeEngineLogs(Logs(dir.path()));
  CHECK_FALSE(alone.baseline_noise.relative());
  CHECK(MakeRule(alone.cases[0], "decode_drop_ratio").status == Status::kPass);
  CHECK(alone.absent_cases.size() == 5);

  Write(dir.path() / "runtime_store/summary.md", report(5.0));
  const auto both = AnalyzeEngineLogs(Logs(dir.path()));
  CHECK(both.baseline_noise.relative().value() == Approx(0.5 / 5.5));
  // The runs are 5 % slower and 14 % faster, at a noise of 9 %.
  CHECK(MakeRule(both.cases[0], "decode_drop_ratio").status == Status::kNotRun);
  CHECK(MakeRule(both.cases[1], "decode_drop_ratio").status == Status::kPass);
  CHECK(both.notes.size() == 1);
  // Neither report is complete, and four cases of the suite are missing.
  CHECK(MakeRule(both.cases[0], "missing_evidence").status == Status::kFail);
  CHECK(both.absent_cases.size() == 4);
  CHECK(both.status == Status::kFail);

  // The row is 8 % slower with a limit of 5 % and 11 % of noise: neither passed nor failed.
  Write(dir.path() / "runtime_full/summary.md", report(6.2));
  const auto beyond = AnalyzeEngineLogs(Logs(dir.path()));
  const RuleOutcome& open = MakeRule(beyond.cases[0], "decode_drop_ratio");
  CHECK(open.status == Status::kInconclusive);
  CHECK(open.reason.find("more repeats of the baseline") != std::string::npos);
  CHECK(beyond.cases[0].status == Status::kFail);  // a report that is cut off fails its case
}

TEST_CASE("rows are compared with baseline rows of the same lengths", "[gate]") {
  test::TempDir dir;
  Write(dir.path() / "runtime_full/logs/a.log",
        Log({{512, 5.0, 0.01, 3.2, 2, 1, "5.00"}, {1024, 4.0, 0.01, 3.2, 2, 1, "5.00"}}));
  Write(dir.path() / "runtime_full/baseline_batch/logs/a.log",
        Log({{512, 6.0, 0.01, 1, 0, 0, "0.00"}, {1024, 4.8, 0.01, 1, 0, 0, "0.00"}}));
  const auto facts = ReadRuntimeCase({dir.path() / "runtime_full", "out/runtime_full"},
                                     {"runtime_full", "full", 0, "out/runtime_full", ""})
                         .facts.value();
  CHECK(facts.like_for_like_drop.value() == Approx(1 - 5.0 / 6));
  CHECK(facts.measured_ratio_mean().value() == 2);
}

TEST_CASE("the measured ratio is that of the worst row, the mean has its own name", "[gate]") {
  test::TempDir dir;
  Write(dir.path() / "runtime_full/logs/a.log", Log({{512, 5.0, 0.01, 3.2, 2.8, 1.4, "5.00"},
                                                     {1024, 4.0, 0.01, 3.2, 1.5, 1.2, "5.00"},
                                                     {2048, 4.0, 0.01, 3.2, 0, 0, "5.00"}}));
  const CaseResult c = AnalyzeEngineLogs(Logs(dir.path())).cases.at(0);
  CHECK(c.logs->true_figures.at("measured_ratio").get<double>() == Approx(1.25));
  CHECK(c.logs->true_figures.at("measured_ratio_mean").get<double>() == Approx(1.625));
  const RuleOutcome& rule = MakeRule(c, "lossless_selected_value");
  CHECK(rule.value == Approx(1.25));
  CHECK(rule.status == Status::kFail);
  CHECK(rule.where.log == "out/runtime_full/logs/a.log row 2");
  // Without rows a report gives only the mean.
  const RuntimeFacts report = CollectReportFacts(
      "- Rows: 3\n- Avg lossless raw MB: 3.0\n- Avg lossless comp MB: 2.0\n\n## Quality Gate\n");
  CHECK_FALSE(report.measured.least);
  CHECK(report.measured_ratio_mean() == 1.5);
}

TEST_CASE("a suite case without a report fails, with the figures of its logs beside", "[gate]") {
  test::TempDir dir;
  Write(dir.path() / "runtime_full/logs/a.log", Log({{512, 5.0, 0.01, 3.2, 2, 1, "1e-05"}}));
  Write(dir.path() / "runtime_full.console.log", "one\nerror: it broke\nlast\n");
  Write(dir.path() / "llm_demo_store.console.log", "");
  EngineLogsInput input = Logs(dir.path());
  input.return_codes["runtime_full"] = 3;
  const EngineVerdict verdict = AnalyzeEngineLogs(input);
  REQUIRE(verdict.cases.size() == 2);
  CHECK(verdict.cases[0].logs->row.at("failure_reason") == "error: it broke");
  CHECK(verdict.cases[0].status == Status::kFail);
  CHECK(verdict.cases[0].reason == "return_code 3, needs == 0: error: it broke");
  CHECK(MakeRule(verdict.cases[0], "lossy_best").status == Status::kPass);
  CHECK(MakeRule(verdict.cases[0], "runtime_decomp_required").value == 1e-05);
  REQUIRE_FALSE(verdict.cases[0].warnings.empty());
  CHECK(verdict.cases[0].warnings[0].find("'1e-05") != std::string::npos);
  CHECK(verdict.cases[1].logs->row.at("failure_reason") == "report json missing");
  CHECK(verdict.cases[1].status == Status::kFail);
  input.return_codes["runtime_ful"] = 0;
  CHECK_THROWS_AS(AnalyzeEngineLogs(input), Error);
}

TEST_CASE("real prompts have ratios that the engine does not judge", "[gate]") {
  test::TempDir dir;
  const auto run = [](double speed, double lossy, double lossless) {
    return Json{{"prompt_bucket", "512"},
                {"decode_tps", speed},
                {"effective_returncode", 0},
                {"h2o_metrics",
                 {{"h2o_lossy_ratio", lossy},
                  {"h2o_lossless_ratio", lossless},
                  {"h2o_lossless_decompress_us", 9}}}}
               .dump() +
           "\n";
  };
  Write(dir.path() / "llm_demo_store/baseline/baseline_runs.jsonl", run(5, 1, 1));
  Write(dir.path() / "llm_demo_store/candidate/candidate_runs.jsonl", run(5, 2.903, 1.269));
  Write(dir.path() / "llm_demo_store/llm_demo_report.json",
        R"({"overall_pass": true, "decode_pass": true, "baseline_decode_tps_avg": 5.5,
            "candidate_lossy_ratio_avg": 2.903, "candidate_lossless_ratio_avg": 1.269})");
  const EngineVerdict verdict = AnalyzeEngineLogs(Logs(dir.path()));
  CHECK(verdict.engine_pass);
  CHECK(verdict.status == Status::kFail);
  CHECK_FALSE(MakeRule(verdict.cases[0], "candidate_lossy_ratio_avg").engine_pass.has_value());
  CHECK(MakeRule(verdict.cases[0], "candidate_lossless_ratio_avg").status == Status::kFail);
  // The report states 5.5 tokens/s, but its runs give 5.
  REQUIRE(verdict.cases[0].warnings.size() == 1);
  CHECK(verdict.cases[0].warnings[0].find("baseline_decode_tps_avg 5.5") != std::string::npos);
}

TEST_CASE("loose runs of llm_demo are judged without a baseline", "[gate]") {
  test::TempDir dir;
  Write(dir.path() / "prompt_512_1.jsonl",
        R"({"prompt_tokens": 512, "prefill_us": 3, "decode_tokens": 8, "decode_us": 2000000,
            "h2o_lossy_ratio": 3.5, "h2o_lossless_ratio": 1.5, "h2o_lossless_decompress_us": 1})"
        "\n");
  Write(dir.path() / "prompt_128_1.stdout.log",
        "prompt tokens num = 128\nprefill time = 1.5 s\n decode time = 2.0 s\n");
  const EngineVerdict verdict = AnalyzeEngineLogs(Logs(dir.path()));
  REQUIRE(verdict.cases.size() == 1);
  CHECK(verdict.cases[0].spec.suite == "llm_demo");
  CHECK(MakeRule(verdict.cases[0], "decode_drop_ratio").status == Status::kNotRun);
  CHECK(MakeRule(verdict.cases[0], "candidate_lossy_ratio_avg").status == Status::kFail);
  CHECK(PromptBucket("a/Prompt_512_3.TXT") == "512");
  CHECK(PromptBucket("prompt_512.txt") == "other");
  CHECK(PromptBucket("xprompt_prompt_7_1.txt") == "7");
}

TEST_CASE("the JSON of llm_bench makes the rows that its table makes", "[gate]") {
  BenchTable table;
  CHECK(table.AddJson(R"({"model":"m","modelSize":3.85,"backend":"CPU","threads":4,"results":[
      {"prompt_len":512,"generate_len":128,"prefill_tps":20.5,"prefill_std":0.1,"decode_tps":6,
       "decode_std":0.05,"h2o_keep_ratio":0.3138,"h2o_lossless_comp_us":9000.25}]})",
                      "a.json") == 1);
  CHECK(table.Cell(0, "llm_demo") == "prompt=512<br>decode=128");
  CHECK(table.Cell(0, "speed(tok/s)") == "20.50 ± 0.10<br>6.00 ± 0.05");
  CHECK(table.Cell(0, "h2o_keep") == "0.3138 ± 0.0000");
  CHECK(table.Cell(0, "h2o_lossless_comp_us") == "9000.25 ± 0.00");
  CHECK_FALSE(table.HasColumn("h2o_lossy"));
}

TEST_CASE("tables drop rows of another width, and a CSV quotes what must be quoted", "[gate]") {
  BenchTable table;
  CHECK(table.AddMarkdown(
            "| a,b | zeta |\r\n|---|:-:|\n| 1 \"x\" | y |\n| 1 | 2 | 3 |\n| - | : |\n", "f.log") ==
        1);
  CHECK(table.Columns() == std::vector<std::string>{"log_file", "a,b", "zeta"});
  const auto csv = BenchTable::FromCsv("log_file,\"a,b\",zeta\r\nf.log,\"1 \"\"x\"\"\",y\r\n");
  CHECK(csv.Columns() == table.Columns());
  REQUIRE(csv.size() == 1);
  for (const std::string& column : table.Columns())
    CHECK(csv.Cell(0, column) == table.Cell(0, column));
  CHECK(table.Cell(0, "a,b") == "1 \"x\"");
  CHECK(table.AddMarkdown("| a |\n|---|\n", "f.log") == 0);
}

TEST_CASE("hostile logs are refused", "[gate]") {
  BenchTable table;
  const auto finding = [](const auto& use) {
    try {
      use();
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding::kInternal;
  };
  std::string bars;
  for (int i = 0; i < 600; ++i) bars += "|a";
  CHECK(finding([&] { table.AddMarkdown(bars + "\n|-|\n" + bars + "\n", "f"); }) ==
        Finding::kLimit);
  CHECK(finding([&] { BenchTable::FromCsv("a,b\n\"open"); }) == Finding::kBadText);
  CHECK(finding([&] { BenchTable::FromCsv(""); }) == Finding::kBadText);
  CHECK(finding([&] { ParseJson(std::string(100, '['), "f"); }) == Finding::kLimit);
  CHECK(finding([&] { ParseJson("{\"a\": 1e999.5}", "f"); }) == Finding::kBadText);
  std::string keys = "{";
  for (int i = 0; i < 5000; ++i) keys += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  CHECK(finding([&] { ParseJson(keys + "}", "f"); }) == Finding::kLimit);
  CHECK(finding([&] { ParseOfflineRatio("{\"lossless_ratio\": 0}", "f"); }) == Finding::kBadField);
  CHECK(finding([&] { ParseOfflineRatio("[1]", "f"); }) == Finding::kBadText);
  AnalyzerOptions options;
  CHECK(finding([&] { SetAnalyzerOption("lossy", "3", options); }) == Finding::kUsage);
  CHECK(finding([&] { SetAnalyzerOption("lossy_target", "three", options); }) == Finding::kUsage);
  CHECK(finding([&] { SetAnalyzerOption("runtime_mode", "fast", options); }) == Finding::kUsage);
  test::TempDir dir;
  CHECK(finding([&] { AnalyzeEngineLogs(Logs(dir.path())); }) == Finding::kMissingRecord);
  CHECK(finding([&] { AnalyzeEngineLogs(Logs(dir.path() / "none")); }) == Finding::kOpenFailed);
  Write(dir.path() / "x.log", "words\n");
  CHECK(finding([&] { AnalyzeEngineLogs(Logs(dir.path())); }) == Finding::kMissingRecord);
}

TEST_CASE("a folder of bench logs brings its own baseline, and its failed runs count", "[gate]") {
  test::TempDir dir;
  Write(dir.path() / "logs/a.log", Log({{512, 5.0, 0.01, 3.2, 2, 1, "5.00"}}));
  Write(dir.path() / "baseline_batch/logs/a.log",
        Log({{512, 5.1, 0.01, 1, 0, 0, "0.00"}, {1024, 6.0, 0.01, 1, 0, 0, "0.00"}}));
  Write(dir.path() / "manifest.json",
        R"([{"run_id": "run_0001", "return_code": 0}, {"run_id": "run_0002", "return_code": 9}])");
  const EngineVerdict verdict = AnalyzeEngineLogs(Logs(dir.path()));
  REQUIRE(verdict.cases.size() == 1);
  // The engine compares 5 with the best baseline row, which has another length.
  const RuleOutcome& drop = MakeRule(verdict.cases[0], "decode_drop_ratio");
  CHECK(drop.engine_value.value() == Approx(1 - 5.0 / 6).margin(1e-6));
  CHECK(drop.engine_pass == false);
  CHECK(drop.value.value() == Approx(1 - 5.0 / 5.1));
  CHECK(drop.status == Status::kPass);
  CHECK(MakeRule(verdict.cases[0], "bench_runs_failed").value == 1);
  CHECK(verdict.status == Status::kFail);
  REQUIRE_FALSE(verdict.cases[0].warnings.empty());
  CHECK(verdict.cases[0].warnings[0] == "run run_0002 returned 9");
}

TEST_CASE("the engine's own lines are held against it", "[gate]") {
  LosslessLines lines;
  ScanLosslessLines(
      "[H2O-LOSSLESS] layer=1 kv=9 tokens=64 eff_ratio=1.2500 fallback=1\nnoise\n"
      "[H2O-LOSSLESS] layer=0 tokens=192 eff_ratio=1.5\n[H2O-LOSSLESS] layer=1 tokens=64 "
      "eff_ratio=1.3000 fallback=0\n",
      lines);
  CHECK(lines.count == 3);
  CHECK(lines.of_192_tokens == 1);
  CHECK(lines.most_fallbacks == 1);
  REQUIRE(lines.layers.size() == 2);
  CHECK(lines.layers[1].last_ratio == 1.3);
  CHECK(lines.layers[1].fallbacks == 1);
  InvalidLines invalid;
  ScanInvalidLines("a\r  invalid kv REALLOC x\r\nfree(): double free\n", "f.log", invalid);
  CHECK(invalid.count == 2);
  CHECK(invalid.examples[0] == "f.log: invalid kv REALLOC x");
  // Bytes that are not UTF-8 are dropped before the search for words, as in the engine's tools.
  ScanInvalidLines("invalid k\x86v real\xffloc y\n", "g.log", invalid);
  CHECK(invalid.count == 3);
  CHECK(invalid.examples[2] == "g.log: invalid kv realloc y");
}

}  // namespace kv::mnn::logs::logs_test
