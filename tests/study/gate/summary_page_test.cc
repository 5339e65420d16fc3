// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/core/base/error.h"
#include "lib/report/html.h"
#include "lib/report/junit.h"
#include "lib/study/gate/summary_view.h"
#include "tests/support/engines.h"

namespace kv::gate::summary_page_test {
namespace {

constexpr std::string_view kOurs = R"({
  "schema": "kvtool.gate/1", "tool": {"name": "kvtool", "version": "1.2"},
  "generated_at": "2026-11-02T10:00:00", "overall_pass": false, "verdict": "fail",
  "cases": [
    {"name": "runtime_store", "mode": "store", "status": "fail", "origin": "replay",
     "reason": "too <little>",
     "rules": [
       {"metric": "lossy_best", "op": ">=", "limit": 3, "value": 2.5, "margin": -0.5,
        "status": "fail", "reason": "", "reproduce": "kvtool gate --snapshot s & t",
        "where": {"layer": 3, "kind": "K", "head": 1, "token_begin": 64, "token_end": 128}},
       {"metric": "runtime_decomp_best_us", "op": "<=", "limit": 70000, "value": 13941,
        "margin": 56059, "status": "pass", "engine_value": 13941, "engine_pass": true},
       {"metric": "decode_drop_ratio", "op": "<=", "limit": 0.05, "value": null,
        "status": "not_run", "reason": "only an engine can measure it"}],
     "engine": {"lossy_best": 3.1, "kv_content_consistency_pass": true},
     "true_figures": {"lossy_worst": 2.5, "content": {"compared_ranges": 12, "mismatches": 0}},
     "layers": [{"layer": 0, "k_ratio": 1.5, "v_ratio": 1.2, "attention_error": null},
                {"layer": 1, "k_ratio": 1.4, "v_ratio": null, "attention_error": 0.02}],
     "resident_over_time": [{"token": 1, "bytes": 4096}, {"token": 2, "bytes": 8192}],
     "warnings": ["mind this"]},
    {"name": "llm_demo_full", "mode": "full", "status": "not_run", "reason": "no engine logs"}],
  "baseline_noise": {"relative": 0.031}})";

constexpr std::string_view kOriginal = R"({
  "generated_at": "2026-11-01T10:00:00", "overall_pass": true,
  "rows": [{"suite": "runtime", "case": "runtime_store", "mode": "store", "return_code": 0,
            "failure_reason": "", "overall_pass": true, "lossy_best": 3.2,
            "decode_baseline": 5.0, "decode_drop_ratio": 0.01, "decode_drop_target": 0.05,
            "runtime_async_wait_best_us": 18708.0, "runtime_async_wait_headroom_us": 21292.0,
            "kv_content_consistency_pass": true}]})";

bool Has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Finding FindingOf(std::string_view text) {
  try {
    ParseSummary(text, "s.json");
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding::kInternal;
}

}  // namespace

TEST_CASE("the subtitle begins with what is known", "[gate]") {
  const auto subtitle = [](const Summary& summary) {
    const std::string page = SummaryPage({&summary, 1}, test::Engine()).Text();
    const size_t at = page.find("</h1>");
    return page.substr(at, page.find("</p>", at) - at);
  };
  CHECK(Has(subtitle(ParseSummary(kOurs, "s.json")), ">s.json, 2026-11-02T10:00:00, kvtool 1.2"));
  CHECK(Has(subtitle(ParseSummary(kOurs, "")), ">2026-11-02T10:00:00, kvtool 1.2"));
}

TEST_CASE("a failing rule decides a case, else the one with the least slack", "[gate]") {
  const SummaryView view = MakeView(ParseSummary(kOurs, "s.json"), test::Engine());
  CHECK_FALSE(view.pass);
  REQUIRE(view.cases.size() == 2);
  const RuleOutcome* rule = view.cases[0].Deciding();
  REQUIRE(rule != nullptr);
  CHECK(Sentence(*rule) == "2.5x, needs >= 3x");
  CHECK(Text(rule->where, true) == "layer 3 K, head 1, tokens 64:128");
  CHECK(Gauge(*rule).value() == Approx(2.5 / 3));
  CHECK(view.cases[1].Deciding() == nullptr);
  CHECK(view.cases[0].Figure("content.compared_ranges") == 12);
  CHECK(view.Count(Status::kNotRun) == 1);

  const SummaryView original = MakeView(ParseSummary(kOriginal, "o.json"), test::Engine());
  CHECK(original.is_original);
  const RuleOutcome* tightest = original.cases.at(0).Deciding();
  REQUIRE(tightest != nullptr);
  CHECK(tightest->rule.metric == "runtime_async_wait_best_us");
  CHECK(Sentence(*tightest) == "18.71 ms, needs <= 40 ms");
}

TEST_CASE("a failed case fails the summary, whatever else the document says", "[gate]") {
  const auto view = [](std::string text, std::string_view from, std::string_view to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return MakeView(ParseSummary(text.replace(at, from.size(), to), "s.json"), test::Engine());
  };
  std::string edited(kOurs);
  const std::string stated = R"("overall_pass": false, "verdict": "fail")";
  edited.replace(edited.find(stated), stated.size(), R"("overall_pass": true, "verdict": "pass")");
  const SummaryView by_status = MakeView(ParseSummary(edited, "s.json"), test::Engine());
  CHECK_FALSE(by_status.pass);
  CHECK(by_status.cases[0].status == Status::kFail);
  // The case failed even if it says otherwise, because one of its rules failed.
  const SummaryView by_rule =
      view(edited, R"("status": "fail", "origin")", R"("status": "pass", "origin")");
  CHECK_FALSE(by_rule.pass);
  CHECK(by_rule.cases[0].status == Status::kFail);
  CHECK(Has(SummaryJunit(ParseSummary(edited, "s.json"), test::Engine()), "failures=\"1\""));
  CHECK(Has(SummaryPage(std::vector{ParseSummary(edited, "s.json")}, test::Engine()).Text(),
            "<b>Fail</b>"));
  // The original's.
  CHECK(MakeView(ParseSummary(kOriginal, "o.json"), test::Engine()).pass);
  const std::string original(kOriginal);
  for (const auto& [from, to] :
       {std::pair{R"("failure_reason": "", "overall_pass": true)",
                  R"("failure_reason": "", "overall_pass": false)"},
        std::pair{R"("return_code": 0)", R"("return_code": 1)"},
        std::pair{R"("kv_content_consistency_pass": true)",
                  R"("kv_content_consistency_pass": false)"},
        std::pair{R"("lossy_best": 3.2)", R"("lossy_best": 3.2, "quality_status": "FAIL")"},
        std::pair{R"("lossy_best": 3.2)", R"("lossy_best": 3.2, "decode_pass": false)"}}) {
    INFO(to);
    const SummaryView changed = view(original, from, to);
    CHECK_FALSE(changed.pass);
    CHECK(changed.cases[0].status == Status::kFail);
  }
  const SummaryView open = view(edited, R"("status": "not_run", "reason": "no engine logs")",
                                R"("status": "inconclusive", "reason": "noise")");
  CHECK(open.Count(Status::kInconclusive) == 1);
}

TEST_CASE("the page says the verdict first and reaches out to nothing", "[gate]") {
  const std::vector<Summary> summaries = {ParseSummary(kOurs, "new.json"),
                                          ParseSummary(kOriginal, "old.json")};
  CHECK(Newest(summaries).file == "new.json");
  const std::string page = SummaryPage(summaries, test::Engine()).Text();
  const size_t verdict = page.find("<b>Fail</b>"), cases = page.find("<h2>Cases</h2>");
  REQUIRE(verdict != std::string::npos);
  REQUIRE(cases != std::string::npos);
  CHECK(verdict < cases);
  for (const char* part :
       {"1 failed, 1 not run. runtime_store: lossy_best: 2.5x, needs\u00a0\u2265\u00a03x",
        "href=\"#runtime_store\"", "id=\"runtime_store\"", "too &lt;little&gt;",
        "kvtool gate --snapshot s &amp; t", "layer 3 K, head 1, tokens 64:128",
        "Lossless ratio per layer", "Resident bytes over time", "Attention error per layer",
        "<h2>History</h2>", "2026-11-01T10:00:00", "mind this", "3.1%", "prefers-color-scheme:dark",
        "name=\"viewport\""}) {
    INFO(part);
    CHECK(Has(page, part));
  }
  for (const char* part : {"<script ", "src=", "https:", "@import", "url(", "<link", "<img"}) {
    INFO(part);
    CHECK_FALSE(Has(page, part));
  }
  CHECK(page == SummaryPage(summaries, test::Engine()).Text());
}

TEST_CASE(
    "the history says by commit what is absent, how far figures moved, and where limits are") {
  const auto run = [](const std::string& number, const std::string& status, double ratio,
                      const std::string& more) {
    return ParseSummary(
        R"({"schema": "kvtool.gate/1", "generated_at": "2026-11-0)" + number + R"(", "commit": ")" +
            number + R"(aaaabbbbccccdddd", "verdict": ")" + status +
            R"(", "cases": [{"name": "stays", "status": ")" + status +
            R"(", "rules": [{"metric": "measured_ratio", "op": ">=", "limit": 1.9, "value": )" +
            std::to_string(ratio) + R"(, "status": ")" + status +
            R"("}], "true_figures": {"measured_ratio": )" + std::to_string(ratio) + "}}" + more +
            "]}",
        number + ".json");
  };
  const std::vector<Summary> summaries = {
      run("3", "fail", 1.8, ""),
      run("1", "pass", 2.0, R"(, {"name": "long gone", "status": "pass"})"),
      run("2", "inconclusive", 1.9, R"(, {"name": "lost", "status": "not_run"})")};
  const std::string page = SummaryPage(summaries, test::Engine()).Text();
  // Cases that only the previous run had come first.
  const size_t absent = page.find("<h2>Absent cases</h2>"), cases = page.find("<h2>Cases</h2>");
  REQUIRE(absent < cases);
  CHECK(Has(page.substr(absent, cases - absent), "not run in the run before, 2aaaabbbbc"));
  CHECK_FALSE(Has(page.substr(absent, cases - absent), "long gone"));
  // One row each, absent cases on top, the newest run first, one colour per verdict.
  const std::string grid = page.substr(page.find("<table class=\"grid\">"));
  CHECK(grid.find(">lost<") < grid.find(">long gone<"));
  CHECK(grid.find(">long gone<") < grid.find(">stays<"));
  CHECK(
      Has(grid,
          R"(<th scope="col" title="3aaaabbbbccccdddd, 2026-11-03">3aaaabb</th><th scope="col")"));
  const std::string row = grid.substr(grid.find(">stays<"));
  CHECK(row.find("<td class=\"bad\">") < row.find("<td class=\"unsure\">"));
  CHECK(row.find("<td class=\"unsure\">") < row.find("<td class=\"good\">"));
  // Figures are shown next to their limit, their step and their drift.
  CHECK(Has(grid,
            "<td>measured_ratio</td><td class=\"n\">1.8</td><td>\u2265 1.9x</td>"
            "<td class=\"n\">-5.3</td><td class=\"n\">-10</td>"));
  CHECK(Has(grid, "stays: measured_ratio"));
  CHECK(Has(grid, "The dotted line is the limit."));
}

TEST_CASE("the page shows what is there and needs nothing", "[gate]") {
  for (const char* text :
       {"{\"cases\": []}", "{\"rows\": []}", "{\"cases\": [{}]}", "{\"rows\": [{}, 3]}",
        "{\"cases\": [{\"rules\": [{}], \"layers\": [{}], \"engine\": 3}]}"}) {
    const std::vector<Summary> one = {ParseSummary(text, "s.json")};
    INFO(text);
    CHECK(Has(SummaryPage(one, test::Engine()).Text(), "<b>Fail</b>"));
    CHECK(Has(SummaryJunit(one[0], test::Engine()), "failures=\"1\""));
  }
}

TEST_CASE("what is no summary is refused", "[gate]") {
  CHECK(FindingOf("{") == Finding::kBadText);
  CHECK(FindingOf("[]") == Finding::kBadField);
  CHECK(FindingOf("{\"rows\": 3}") == Finding::kBadField);
  std::string many = "{\"rows\": [0";
  for (int i = 0; i < 600; ++i) many += ",0";
  CHECK(FindingOf(many + "]}") == Finding::kLimit);
}

TEST_CASE("JUnit has a test per rule, skipped where it was not run", "[gate]") {
  const std::string xml = SummaryJunit(ParseSummary(kOurs, "s.json"), test::Engine());
  CHECK(Has(xml,
            "<testsuites name=\"kvtool gate\" tests=\"4\" failures=\"1\" errors=\"0\" "
            "skipped=\"2\">"));
  CHECK(Has(xml,
            "<failure message=\"2.5x, needs &gt;= 3x\">value: 2.5\nlimit: &gt;= 3\n"
            "where: layer 3 K, head 1, tokens 64:128\n"
            "reproduce: kvtool gate --snapshot s &amp; t\n</failure>"));
  CHECK(Has(xml, "only an engine can measure it\"/>"));
  CHECK(Has(xml,
            "<testcase classname=\"llm_demo_full\" name=\"case\">\n      <skipped "
            "message=\"no engine logs\"/>"));
}

TEST_CASE("figures carry the unit that their names say", "[gate]") {
  CHECK(FigureText("resident_bytes.peak", 1536) == "1.5 KiB");
  CHECK(FigureText("runtime_async_wait_best_us", 1.25e6) == "1.25 s");
  CHECK(FigureText("decode_drop_ratio", 0.18) == "18%");
  CHECK(FigureText("lossy_best", 3.186) == "3.186x");
  CHECK(FigureText("runtime_queue_peak_best", 2.5) == "2.5");
}

TEST_CASE("JUnit escapes what its attributes and texts hold", "[report]") {
  const std::string xml = report::JunitXml(
      "a \"b\"", {{"s<1>", {{"t", report::JunitTest::Outcome::kPassed, "", "line 1\n<2>", 0.5}}}});
  CHECK(Has(xml, "<testsuites name=\"a &quot;b&quot;\" tests=\"1\" failures=\"0\""));
  CHECK(Has(xml, "<testcase classname=\"s&lt;1&gt;\" name=\"t\" time=\"0.500000\">"));
  CHECK(Has(xml, "<system-out>line 1\n&lt;2&gt;</system-out>"));
}

TEST_CASE("judging pages name each outcome in words and link records to entries", "[report]") {
  report::Page page("t");
  page.Verdict(report::Tone::kBad, "Fail", "because");
  page.Records({"", "case", "why"}, {{report::Tone::kBad, "fail", {"a b", "x<y"}, 0.5}}, true);
  page.Entry(report::Tone::kBad, "fail", "a b", "remark");
  page.Fold("more");
  page.Command("run --it");
  page.EndFold();
  const std::string text = page.Text();
  CHECK(Has(text, "<div class=\"verdict bad\"><b>Fail</b><p>because</p></div>"));
  CHECK(Has(text, "<a href=\"#a-b\">a b</a>"));
  CHECK(Has(text, "id=\"a-b\""));
  CHECK(Has(text, "width:25%"));
  CHECK(Has(text, "x&lt;y"));
  CHECK(Has(text, "<details><summary>more</summary>\n<pre>run --it</pre>\n</details>"));
}

}  // namespace kv::gate::summary_page_test
