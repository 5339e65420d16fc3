// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "lib/engines/mnn/logs/logs.h"
#include "lib/engines/mnn/logs/suite.h"
#include "lib/study/gate/log_files.h"
#include "tests/support/temp_dir.h"

namespace kv::mnn::logs::evidence_test {
namespace {

void Write(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string Utf16(std::u16string_view text, bool is_big) {
  std::string bytes;
  for (const char16_t unit : text) {
    const char high = static_cast<char>(unit >> 8), low = static_cast<char>(unit & 0xff);
    bytes += is_big ? high : low;
    bytes += is_big ? low : high;
  }
  return bytes;
}

}  // namespace

TEST_CASE("logs are read in whatever encoding a shell gave them", "[gate]") {
  const std::u16string text = u"| 6.00 ± 0.05 |\r\n";
  const std::string wanted = "| 6.00 ± 0.05 |\r\n";
  CHECK(LogText(wanted) == wanted);
  CHECK(LogText("\xef\xbb\xbf" + wanted) == wanted);
  CHECK(LogText("\xff\xfe" + Utf16(text, false)) == wanted);
  CHECK(LogText("\xfe\xff" + Utf16(text, true)) == wanted);
  CHECK(LogText(Utf16(text, false)) == wanted);
  CHECK(LogText(Utf16(text, true)) == wanted);
  // The text has other than Latin letters, and a byte-order mark names its encoding.
  CHECK(LogText("\xff\xfe" + Utf16(u"日志 😀", false)) == "日志 😀");
  // The text changes its encoding in the middle.
  CHECK(LogText("first\n" + Utf16(u"double free\n", false)) == "first\ndouble free\n");
  CHECK(LogText("first\n" + Utf16(u"double free\n", true)) == "first\ndouble free\n");
  CHECK(LogText("\xff\xfe" + Utf16(u"first\n", false) + "corrupted size vs. prev_size\n") ==
        "first\ncorrupted size vs. prev_size\n");
  // The text is cut inside a unit, has half a surrogate pair, or ends in the zeros of a file that
  // was extended.
  CHECK(LogText("\xff\xfe" + Utf16(u"abc", false) + "d") == "abc");
  CHECK(LogText("\xff\xfe" + Utf16(u"a\xd83d"
                                   u"b",
                                   false)) == "ab");
  CHECK(LogText(std::string("a\n\0\0\0\0", 6)) == "a\n");
  CHECK(LogText(std::string("a\0\0\0b\0\0\0", 8)) == "ab");
  CHECK(LogText("").empty());
}

TEST_CASE("a number that is not finite is found however it is spelt", "[gate]") {
  for (const char* text : {"nan", "-NaN", "1e999 ± 0.00", "6.00 ± inf", "20.50 ± 0.10<br>nan ± nan",
                           "1.#IND", "-nan(ind)", "+Infinity", "-1e999"}) {
    INFO(text);
    CHECK(HasNonFinite(text));
  }
  for (const char* text : {"", "6.00 ± 0.05", "1e-999", "information", "nano", "20.5 ± 0.1<br>6"}) {
    INFO(text);
    CHECK_FALSE(HasNonFinite(text));
  }
}

TEST_CASE("JSON is read as Python writes it", "[gate]") {
  const Json json =
      ParseJson(R"({"a": NaN, "b": [-Infinity, 1e999, -1e999, 1e5], "c": "NaN \" 1e999"})", "f");
  CHECK(std::isnan(NumberAt(json, "a")));
  CHECK(json["b"][0] == "-Infinity");
  CHECK(json["b"][1] == "Infinity");
  CHECK(json["b"][2] == "-Infinity");
  CHECK(json["b"][3] == 1e5);
  CHECK(json["c"] == "NaN \" 1e999");
  Evidence evidence;
  CheckFigures(json, "f", evidence);
  CHECK(evidence.non_finite.count == 4);
}

TEST_CASE("a line of damage that a console repeats is one line", "[gate]") {
  Damage damage;
  damage.AddBench("double free\ndouble free\n", "run.log");
  CHECK(damage.lines().count == 2);
  damage.AddOther("  double free\nmunmap_chunk(): invalid\n", "console.log");
  CHECK(damage.lines().count == 3);
  CHECK(damage.lines().examples.back() == "console.log: munmap_chunk(): invalid");
  damage.AddOther("munmap_chunk(): other\n", "console.log");  // read before
  CHECK(damage.lines().count == 3);
}

TEST_CASE("only verdicts that were asked for say no", "[gate]") {
  GateBullets bullets = {{"overall_pass", "true"},
                         {"quality_status", "PASS"},
                         {"lossless_selected_pass", "false"},
                         {"kv_async_activity_pass", "false"},
                         {"decode_pass", "True"}};
  CHECK(DeniedBy(bullets).empty());
  bullets["require_kv_content_consistency"] = "true";
  CHECK(DeniedBy(bullets) == std::vector<std::string>{"kv_async_activity_pass"});
  bullets.erase("overall_pass");
  CHECK(DeniedBy(bullets).front() == "overall_pass");
  CHECK(DeniedBy(GateBullets{}).empty());
  CHECK(DeniedBy(Json{{"overall_pass", 1}}) == std::vector<std::string>{"overall_pass"});
  CHECK(DeniedBy(Json{{"overall_pass", true},
                      {"require_bucket_decode_pass", false},
                      {"bucket_gate_pass", false},
                      {"bucket_alignment_failures", {"512"}}}) ==
        std::vector<std::string>{"bucket_gate_pass", "bucket_alignment_failures"});
}

TEST_CASE("rows that others have more of are missed", "[gate]") {
  BenchTable table;
  table.AddMarkdown("| speed(tok/s) | h2o_lossy |\n|-|-|\n| 1 ± 0<br>2 ± 0 | 3.1 |\n", "a.log");
  table.AddMarkdown("| speed(tok/s) |\n|-|\n| 1 ± 0<br> |\n", "b.log");
  Evidence evidence;
  CheckCells(table, evidence);
  CHECK(evidence.non_finite.count == 0);
  REQUIRE(evidence.gaps.count == 2);
  CHECK(evidence.gaps.examples[0] ==
        "b.log row 2: speed(tok/s) is '1 ± 0<br>', which is not a number");
  CHECK(evidence.gaps.examples[1] == "b.log row 2: h2o_lossy is empty");
}

TEST_CASE("the suite's own words are heard, and only about its cases", "[gate]") {
  test::TempDir dir;
  Write(dir / "summary.json",
        R"({"overall_pass": false, "total_cases": 2, "rows": [
            {"case": "runtime_full", "return_code": 0, "overall_pass": true},
            {"case": "../other", "return_code": 0, "overall_pass": true}]})");
  Write(dir / "cases.jsonl",
        R"({"case": "runtime_full", "return_code": -11, "overall_pass": true})");
  const SuiteOutput words = ReadSuiteOutput({dir.path(), "out"});
  REQUIRE(words.cases.size() == 1);
  const CaseOutput& full = words.cases.at("runtime_full");
  CHECK(full.return_code == -11);
  CHECK(full.code_place == "out/cases.jsonl");
  CHECK(words.evidence.denials.size() == 1);
  CHECK(words.evidence.gaps.examples ==
        std::vector<std::string>{"out/summary.json: a row does not name its case"});
}

TEST_CASE("a summary that kvtool wrote over the suite's is none of the suite's", "[gate]") {
  test::TempDir dir;
  Write(dir / "summary.json", R"({"schema": "kvtool.gate/1", "overall_pass": false, "rows": [
            {"case": "runtime_full", "return_code": null, "overall_pass": false}]})");
  const SuiteOutput words = ReadSuiteOutput({dir.path(), "out"});
  CHECK(words.cases.empty());
  CHECK(words.evidence.denials.empty());
  CHECK(words.notes.size() == 1);
}

}  // namespace kv::mnn::logs::evidence_test
