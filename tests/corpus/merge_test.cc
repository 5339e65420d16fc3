// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/base/error.h"

namespace kv::corpus::merge_test {
namespace {

using TestJson = nlohmann::ordered_json;

constexpr size_t kInputs = 200;

ResultsHead HeadOf(uint32_t shard, uint32_t shards, uint64_t entries) {
  ResultsHead head;
  head.version = "1";
  head.command = "replay-quant";
  head.parameters = {"--k q8_0"};
  head.parameters_xxh3 = "0";
  head.corpus_xxh3 = "c";
  head.corpus_entries = kInputs;
  head.corpus_bytes = 1000;
  head.shard = {shard, shards};
  head.entries = entries;
  return head;
}

std::string NameOf(size_t input) { return fmt::format("{:03}", input * 37 % kInputs); }

// Returns errors with one outlier and some equal values.
double ErrorOf(size_t input) { return input == 5 ? 99 : static_cast<double>(input % 50) / 7; }

TestJson LineOf(size_t input, const ResultsHead& head) {
  const TestJson run = {{"k", "q8_0"},
                        {"v", "q4_0"},
                        {"full_bytes", 1000 + input},
                        {"bytes", 500 + 2 * input},
                        {"output_error", ErrorOf(input)},
                        {"one_minus_cosine", 0},
                        {"attention_kl", nullptr},
                        {"mass_moved", 0.25},
                        {"predicted_kl", {{"nats", 0.5 * ErrorOf(input)}}}};
  return {{"name", NameOf(input)},
          {"bytes", 1000 + input},
          {"model", input % 3 == 0 ? TestJson("m1") : TestJson()},
          {"format", "f"},
          {"corpus_xxh3", head.corpus_xxh3},
          {"shard", {{"index", head.shard.index}, {"count", head.shard.count}}},
          {"exit_code", 0},
          {"errors", TestJson::array()},
          {"result", {{"runs", {run}}}}};
}

// Returns the result files of all shards, the lines of each in random order.
std::vector<std::string> FilesOf(uint32_t shards, unsigned seed) {
  std::vector<std::string> files;
  std::mt19937 random(seed);
  for (uint32_t shard = 0; shard < shards; ++shard) {
    std::vector<size_t> inputs;
    for (size_t i = shard; i < kInputs; i += shards) inputs.push_back(i);
    std::shuffle(inputs.begin(), inputs.end(), random);
    const ResultsHead head = HeadOf(shard, shards, inputs.size());
    std::string text = head.ToJson({{"version", "1"}}).dump() + "\n";
    for (const size_t input : inputs) text += LineOf(input, head).dump() + "\n";
    files.push_back(text + "{\"torn");
  }
  return files;
}

Merged Join(const std::vector<std::string>& files) {
  Merger merger;
  for (size_t i = files.size(); i-- > 0;) merger.Add(fmt::format("file{}", i), files[i]);
  return merger.Finish();
}

TestJson MergedJson(const Merged& merged) {
  return ToJson(MergeReportFields().Object(MakeMergeReport(merged)));
}

std::string Failure(const std::vector<std::string>& files) {
  try {
    Join(files);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("Records sort by their bytes, whatever fits into memory", "[corpus]") {
  std::mt19937 random(1);
  std::vector<std::string> records;
  for (int i = 0; i < 3000; ++i) {
    std::string record(random() % 40, '\0');
    for (char& c : record) c = static_cast<char>(random() % 5 + 126);
    records.push_back(record);
  }
  for (const size_t memory : {size_t{100}, size_t{10'000}, size_t{1} << 24}) {
    ExternalSorter sorter(memory);
    for (const std::string& record : records) sorter.Add(record);
    std::vector<std::string> sorted;
    sorter.ForEach([&](std::string_view record) { sorted.emplace_back(record); });
    std::vector<std::string> expected = records;
    std::sort(expected.begin(), expected.end());
    CHECK(sorted == expected);
  }
}

TEST_CASE("A spill gives back what it was given, from memory and from its file", "[corpus]") {
  for (const size_t memory : {size_t{0}, size_t{1} << 24}) {
    Spill spill(memory);
    std::string all;
    for (int i = 0; i < 40'000; ++i) {
      const std::string piece = fmt::format("{} ", i * 7919);
      all += piece;
      spill.Append(piece);
    }
    REQUIRE(spill.size() == all.size());
    std::string back(all.size() - 1000, '\0');
    spill.Read(500, back.data(), back.size());
    CHECK(back == all.substr(500, back.size()));
    SpillReader reader(spill, 10, all.size(), 100);
    std::string read;
    while (reader.more()) read += reader.Take(1);
    CHECK(read == all.substr(10));
  }
}

TEST_CASE("Shards merge to what one run comes to, byte for byte", "[corpus]") {
  const Merged one = Join(FilesOf(1, 1));
  const std::string document = MergedJson(one).dump();
  const std::string page = MergedPage(MakeMergeReport(one)).Text();
  for (const uint32_t shards : {2U, 7U, 200U}) {
    const Merged joined = Join(FilesOf(shards, shards));
    CHECK(MergedJson(joined).dump() == document);
    CHECK(MergedPage(MakeMergeReport(joined)).Text() == page);
  }
}

TEST_CASE("A merged figure is what plain arithmetic says", "[corpus]") {
  const Merged merged = Join(FilesOf(3, 9));
  const TestJson json = MergedJson(merged);
  std::vector<double> errors;
  double sum = 0, original = 0, left = 0;
  for (size_t i = 0; i < kInputs; ++i) {
    errors.push_back(ErrorOf(i));
    sum += ErrorOf(i);
    original += static_cast<double>(1000 + i);
    left += static_cast<double>(500 + 2 * i);
  }
  std::sort(errors.begin(), errors.end());
  const auto figure = [&](const TestJson& figures, const char* name) {
    return *std::find_if(figures.begin(), figures.end(),
                         [&](const TestJson& one) { return one["figure"] == name; });
  };
  const TestJson error = figure(json["figures"], "output_error");
  CHECK(error["what"] == "K q8_0, V q4_0");
  CHECK(error["count"] == kInputs);
  CHECK(error["mean"].get<double>() == Approx(sum / kInputs));
  double squares = 0;
  for (const double value : errors) squares += std::pow(value - sum / kInputs, 2);
  CHECK(error["deviation"].get<double>() == Approx(std::sqrt(squares / (kInputs - 1))));
  CHECK(error["min"] == errors.front());
  CHECK(error["p5"] == errors[9]);
  CHECK(error["median"] == errors[99]);
  CHECK(error["p95"] == errors[189]);
  CHECK(error["max"] == 99.0);
  CHECK(error["weighted"].is_null());
  CHECK(figure(json["figures"], "ratio")["weighted"].get<double>() == Approx(original / left));
  CHECK(figure(json["figures"], "predicted_kl_nats")["max"] == 49.5);
  // One group per model; each input is in one.
  REQUIRE(json["groups"].size() == 2);
  CHECK(json["groups"][0]["model"].is_null());
  CHECK(json["groups"][1]["model"] == "m1");
  CHECK(json["groups"][1]["entries"] == 67);
  const TestJson of_group = figure(json["groups"][0]["figures"], "output_error");
  CHECK(of_group["count"] == 133);
  CHECK(of_group["max"] == 99.0);
  CHECK(figure(json["groups"][1]["figures"], "output_error")["max"].get<double>() ==
        Approx(49.0 / 7));
  // Each outlier has the command that reproduces it.
  REQUIRE(json["outliers"].size() == 2);
  CHECK(json["outliers"][0]["name"] == NameOf(5));
  CHECK(json["outliers"][0]["command"] == "kvtool replay-quant --k q8_0 " + NameOf(5));
  CHECK(json["outliers"][0]["median"] == errors[99]);
}

TEST_CASE("A later line is of a later try and takes the place of the earlier", "[corpus]") {
  std::vector<std::string> files = FilesOf(2, 4);
  const ResultsHead head = HeadOf(0, 2, kInputs / 2);
  TestJson failed = LineOf(0, head);
  failed["exit_code"] = 4;
  failed["result"] = nullptr;
  failed["errors"] = {{{"finding", "KV0102"}, {"message", "cannot read"}}};
  const size_t first = files[0].find('\n') + 1;
  files[0].insert(first, failed.dump() + "\n");
  CHECK(MergedJson(Join(files)).dump() == MergedJson(Join(FilesOf(1, 1))).dump());
  files[0].insert(files[0].rfind('\n') + 1, failed.dump() + "\n");
  const Merged merged = Join(files);
  CHECK(merged.failed == 1);
  CHECK(merged.worst_exit_code == 4);
  CHECK(MergedJson(merged)["failures"][0]["text"] == "cannot read");
}

TEST_CASE("What is no result is named with its file and line", "[corpus]") {
  const std::vector<std::string> good = FilesOf(2, 4);
  const auto with = [&](const std::string& line, size_t behind) {
    std::vector<std::string> files = good;
    size_t at = 0;
    for (size_t i = 0; i < behind; ++i) at = files[1].find('\n', at) + 1;
    files[1].insert(at, line + "\n");
    return Failure(files);
  };
  using Catch::Contains;
  CHECK_THAT(with("nonsense", 0), Contains("file1: line 1: is not a JSON object"));
  CHECK_THAT(with("{}", 0), Contains("file1: line 1: is not kvtool.results/1"));
  CHECK_THAT(with("[1]", 2), Contains("file1: line 3: is not a JSON object"));
  CHECK_THAT(with("{}", 1), Contains("file1: line 2:"));
  TestJson foreign = LineOf(1, HeadOf(1, 2, 0));
  foreign["corpus_xxh3"] = "d";
  CHECK_THAT(with(foreign.dump(), 1), Contains("of another shard or corpus"));
  TestJson of_other = LineOf(0, HeadOf(1, 2, 0));
  CHECK_THAT(with(of_other.dump(), 1), Contains("the result of 000 is also in file"));
  TestJson hidden = LineOf(1, HeadOf(1, 2, 0));
  hidden["name"] = std::string("a\0b", 3);
  CHECK_THAT(with(hidden.dump(), 1), Contains("holds a NUL"));
  CHECK_THAT(Failure({good[0]}), Contains("missing or incomplete: 1"));
  CHECK_THAT(Failure({good[0], ""}), Contains("file1: has no results"));
}

TEST_CASE("A gate's verdict over all, and its JUnit", "[corpus]") {
  ResultsHead head = HeadOf(0, 1, 3);
  head.command = "gate";
  head.corpus_entries = 3;
  const auto rule = [](const char* status, double value) {
    return TestJson{{"metric", "m"},  {"op", ">="},       {"limit", 2},
                    {"value", value}, {"status", status}, {"reason", "why"}};
  };
  const auto line = [&](const char* name, const char* verdict, const char* status, double value) {
    TestJson one = LineOf(0, head);
    one["name"] = name;
    one["exit_code"] = std::string(verdict) == "fail" ? 1 : 0;
    one["result"] = {{"verdict", verdict},
                     {"reason", ""},
                     {"cases",
                      {{{"name", "c"},
                        {"status", status},
                        {"reason", "of the case"},
                        {"rules", {rule(status, value)}},
                        {"true_figures", TestJson::object()}}}}};
    return one.dump() + "\n";
  };
  const std::string begin = head.ToJson({{"version", "1"}}).dump() + "\n";
  const auto merged = [&](const std::string& last) {
    return Join({begin + line("a", "pass", "pass", 3) + line("b", "pass", "not_run", 3) + last});
  };
  CHECK(MakeMergeReport(merged(line("c", "pass", "pass", 2))).verdict == "pass");
  CHECK(MakeMergeReport(merged(line("c", "inconclusive", "inconclusive", 2))).verdict ==
        "inconclusive");
  const Merged failed = merged(line("c<", "fail", "fail", 1));
  CHECK(MakeMergeReport(failed).verdict == "fail");
  const TestJson json = MergedJson(failed);
  CHECK(json["cases"].dump() == R"([{"name":"c","pass":1,"fail":1,"not_run":1,"inconclusive":0,)"
                                R"("failing":[{"rule":"m >= 2","entries":1}]}])");
  CHECK(json["failures"][0]["text"] == "c: m is 1, not >= 2: why");
  std::string junit;
  WriteMergedJunit(failed, [&](std::string_view text) { junit += text; });
  CHECK(junit.find(R"(tests="3" failures="1" errors="0" skipped="1")") != junit.npos);
  CHECK(junit.find("classname=\"c&lt;\"") != junit.npos);
  CHECK(junit.find("reproduce: kvtool gate --k q8_0 'c&lt;' --case c") != junit.npos);
}

}  // namespace
}  // namespace kv::corpus::merge_test
