// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/llamacpp/logs/logs.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "lib/core/base/utf8.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_dir.h"

namespace kv::llamacpp {
namespace {

gate::CaseResult Read(const std::string& file) {
  std::vector<gate::CaseResult> cases =
      ReadLogs(std::filesystem::path(KVTOOL_TESTDATA) / "llamacpp/logs" / file).cases;
  REQUIRE(cases.size() == 1);
  return cases[0];
}

gate::CaseResult ReadOne(std::string_view text) {
  const auto cases = ReadLog(text, "a.log");
  REQUIRE(cases.size() == 1);
  return cases[0];
}

double ValueOf(const gate::CaseResult& item, std::string_view metric) {
  const auto value = item.measured.Value(metric);
  INFO(metric);
  REQUIRE(value);
  return *value;
}

std::string Type(const gate::CaseResult& item, std::string_view key) {
  const gate::ParamValue* value = gate::Find(item.spec.params, key);
  return value == nullptr ? "" : std::get<std::string>(*value);
}

Finding Refusal(std::string_view text) {
  return test::FindingOf([&] { ReadLog(text, "a.json"); });
}

TEST_CASE("llama-server's requests count together, and its two caches add up", "[llama-logs]") {
  const gate::CaseResult server = Read("server.log");
  CHECK(server.spec.mode == "run");
  CHECK(ValueOf(server, "prompt_tokens_per_second") == Approx(1e3 * 543 / 1300.11));
  CHECK(ValueOf(server, "decode_gate_tps") == Approx(1e3 * 184 / 4133.72));
  CHECK(ValueOf(server, "resident_bytes.peak") == Approx(97.22 * 1048576).margin(2));
  CHECK(Type(server, "type_k") == "q8_0");
  CHECK(Type(server, "type_v") == "q5_1");
  CHECK(ValueOf(server, "kv_invalid_log_count") == 0);
}

TEST_CASE("older spellings of llama-server and llama-cli are read", "[llama-logs]") {
  const gate::CaseResult in_2025 = Read("server-2025.log");
  CHECK(ValueOf(in_2025, "prompt_tokens_per_second") == Approx(400));
  CHECK(ValueOf(in_2025, "decode_gate_tps") == Approx(50));
  CHECK(Type(in_2025, "type_v") == "f16");
  const gate::CaseResult in_2024 = Read("server-2024.log");
  CHECK(ValueOf(in_2024, "prompt_tokens_per_second") == Approx(200));
  CHECK(ValueOf(in_2024, "decode_gate_tps") == Approx(25));
  CHECK(ValueOf(in_2024, "resident_bytes.peak") == 160 * 1048576);
  const gate::CaseResult cli = Read("cli.log");
  CHECK(ValueOf(cli, "decode_gate_tps") == Approx(12.64).margin(0.01));
  CHECK(ValueOf(cli, "load_us") == Approx(618920));
  const gate::CaseResult turns = Read("cli-turns.log");
  CHECK(ValueOf(turns, "prompt_tokens_per_second") == 180.2);
  CHECK(ValueOf(turns, "decode_gate_tps") == 45.9);
}

TEST_CASE("the largest context's cache counts", "[llama-logs]") {
  const gate::CaseResult both = ReadOne(
      "llama_context: n_ctx = 4096\n"
      "llama_kv_cache: size = 90.00 MiB (...), K (q8_0):   60.00 MiB, V (q8_0):   30.00 MiB\n"
      "llama_context: n_ctx = 4096\n"
      "llama_kv_cache: size = 3.00 MiB (...), K (f16):   1.50 MiB, V (f16):   1.50 MiB\n");
  CHECK(ValueOf(both, "resident_bytes.peak") == 90 * 1048576);
  CHECK(Type(both, "type_k") == "q8_0");
}

TEST_CASE("llama-perplexity's loss is read in nats and shares", "[llama-logs]") {
  const gate::CaseResult loss = Read("perplexity.log");
  CHECK(loss.spec.mode == "perplexity");
  CHECK(ValueOf(loss, "loss.mean_kl") == 0.005661);
  CHECK(ValueOf(loss, "loss.p999_kl") == 0.098771);
  CHECK(ValueOf(loss, "loss.max_kl") == 0.118034);
  CHECK(ValueOf(loss, "loss.same_top") == Approx(0.97386));
  CHECK(ValueOf(loss, "loss.rms_dp") == Approx(0.01835));
  CHECK(ValueOf(loss, "loss.perplexity") == 15.010712);
  CHECK(ValueOf(loss, "loss.perplexity_ratio") == 1.003777);
  // Nothing was generated: 0 ms and "inf" are not speeds.
  CHECK(loss.measured.Find("decode_gate_tps") == nullptr);
  CHECK(ValueOf(Read("perplexity-2024.log"), "loss.mean_kl") == 0.010623);
  CHECK(ValueOf(Read("perplexity-2024.log"), "loss.max_kl") == 3.94576);
  CHECK(ValueOf(ReadOne("Final estimate: PPL = 6.2297 +/- 0.03724\r\n"), "loss.perplexity") ==
        6.2297);
  // The text is as a Windows console prints it; the worse of two runs counts.
  const gate::CaseResult windows = ReadOne(
      "RMS _p    :  5.843 _ 0.054 %\r\nSame top p: 89.938 _ 0.078 %\r\n"
      "RMS ?p    :  4.000 ? 0.054 %\r\nSame top p: 92.000 ? 0.078 %\r\n");
  CHECK(ValueOf(windows, "loss.rms_dp") == Approx(0.05843));
  CHECK(ValueOf(windows, "loss.same_top") == Approx(0.89938));
}

TEST_CASE("statistics are read behind a time and a level", "[llama-logs]") {
  const gate::CaseResult timed = ReadOne(
      "0.12.345.678 I Mean    KLD:   0.005661 ±   0.000121\n"
      "2026-11-29T08:33:31Z 99.9%   KLD:   0.098771\n"
      "[08:33:31.123] I Same top p: 97.386 ± 0.219 %\n");
  CHECK(ValueOf(timed, "loss.mean_kl") == 0.005661);
  CHECK(ValueOf(timed, "loss.p999_kl") == 0.098771);
  CHECK(ValueOf(timed, "loss.same_top") == Approx(0.97386));
}

TEST_CASE("the worse of two runs counts under old labels and new, and NaN is the worst",
          "[llama-logs]") {
  const std::string old = "===== KL-divergence statistics\nAverage:   0.01\nMaximum:   3\n";
  const std::string now = "Mean    KLD:   0.5\nMaximum KLD:   2\n";
  for (const std::string& text : {old + now, now + old}) {
    CHECK(ValueOf(ReadOne(text), "loss.mean_kl") == 0.5);
    CHECK(ValueOf(ReadOne(text), "loss.max_kl") == 3);
    CHECK(ReadOne("Mean    KLD: nan\n" + text).measured.Find("loss.mean_kl")->undefined);
  }
  const std::string good = "[ Prompt: 9.0 t/s | Generation: 5.0 t/s ]\n";
  const std::string bad = "[ Prompt: 9.0 t/s | Generation: nan t/s ]\n";
  for (const std::string& text : {good + bad, bad + good}) {
    CHECK(ReadOne(text).measured.Find("decode_gate_tps")->undefined);
    CHECK(ValueOf(ReadOne(text), "prompt_tokens_per_second") == 9);
  }
}

TEST_CASE("a comparison that was cut has no loss", "[llama-logs]") {
  const gate::CaseResult cut = ReadOne(
      "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence\n"
      "   1      14.2014 ±    2.5130       0.00184 ±    0.00501       0.00532 ±    0.00031\n");
  const gate::Measurement* loss = cut.measured.Find("loss.mean_kl");
  REQUIRE(loss != nullptr);
  CHECK(!loss->value);
  // This log ends before "Final estimate": the run was killed.
  const std::string begun = "perplexity: calculating perplexity over 12 chunks, n_ctx=512\n";
  const gate::CaseResult killed = ReadOne(begun + "[1]5.1,[2]5.4,\n");
  CHECK(IsCut(killed));
  REQUIRE(killed.measured.Find("loss.perplexity") != nullptr);
  CHECK(!IsCut(ReadOne(begun + "Final estimate: PPL = 6.2 +/- 0.03\n")));
}

TEST_CASE("figures that are no numbers are undefined, and broken runs are counted",
          "[llama-logs]") {
  const gate::CaseResult odd = ReadOne(
      "prompt eval time = 1e999 ms / 3 tokens\n eval time = -5 ms / 3 runs\nMean    KLD: -nan\n"
      "llama_decode: failed to decode, ret = -3\n/x.c:1: GGML_ASSERT(\x1b[2J) failed\n");
  for (const char* metric : {"prompt_tokens_per_second", "decode_gate_tps", "loss.mean_kl"}) {
    const gate::Measurement* found = odd.measured.Find(metric);
    REQUIRE(found != nullptr);
    CHECK(found->undefined);
  }
  CHECK(ValueOf(odd, "kv_invalid_log_count") == 2);
  REQUIRE(odd.rules.size() == 1);
  CHECK(odd.rules[0].status == gate::Status::kFail);
  CHECK(odd.rules[0].rule.implied);
  const std::string& first = odd.measured.Find("kv_invalid_log_count")->reason;
  CHECK(first == "the first of 2 lines: llama_decode: failed to decode, ret = -3");
  for (const char* text : {"", "eval time", "eval time =", "eval time = 3 ms", ", K (", "\n\n",
                           "K (q8_0): 1 MiB, V (q8_0): 1 MiB", "Average: 3", "{}", "[]"}) {
    CHECK(ReadLog(text, "a.log").empty());
  }
}

TEST_CASE("a log that broke before any figure is a case that fails", "[llama-logs]") {
  const gate::CaseResult crashed = ReadOne(
      "llama_model_loader: loaded meta data\nggml.c:1: GGML_ASSERT(n > 0) failed\n(core dumped)\n");
  REQUIRE(crashed.first_failure() != nullptr);
  CHECK(crashed.first_failure()->rule.metric == "kv_invalid_log_count");
  CHECK(ReadOne("main: error: failed to load model models/x.gguf\n").first_failure() != nullptr);
  CHECK(ReadLog("Segmentation fault (core dumped)\n", "a.log").empty());
}

TEST_CASE("a log that ends before any figure is a case that nothing decides", "[llama-logs]") {
  const std::string begun = "0.00.123.456 I llama_model_loader: loaded meta data\n";
  const std::string cache = "llama_kv_cache: size = 9 MiB, K (f16): 6.00 MiB, V (f16): 3.00 MiB\n";
  for (const std::string& text : {begun, begun + cache, cache}) {
    const gate::CaseResult cut = ReadOne(text);
    REQUIRE(cut.first(gate::Status::kNotRun) != nullptr);
    CHECK(cut.first(gate::Status::kNotRun)->rule.implied);
    CHECK(cut.first_failure() == nullptr);
    for (const char* metric : {"decode_gate_tps", "prompt_tokens_per_second", "loss.mean_kl"}) {
      REQUIRE(cut.measured.Find(metric) != nullptr);
      CHECK(!cut.measured.Find(metric)->value);
    }
  }
  CHECK(ValueOf(ReadOne(cache), "resident_bytes.peak") == 9 * 1048576);
  // The line of the generation follows that of the prompt.
  const gate::CaseResult early = ReadOne(begun + "prompt eval time = 20 ms / 4 tokens\n");
  REQUIRE(early.measured.Find("decode_gate_tps") != nullptr);
  CHECK(ValueOf(early, "prompt_tokens_per_second") == 200);
  // A log of another program may contain the same model name.
  for (const char* text : {"model: /models/llama_3/x\n", "llama_3 is loaded\n", "llama_3.2: x\n"}) {
    CHECK(ReadLog(text, "a.log").empty());
  }
}

TEST_CASE("each test of llama-bench is a case", "[llama-logs]") {
  const auto cases = ReadLogs(KVTOOL_TESTDATA "/llamacpp/logs/bench.json").cases;
  REQUIRE(cases.size() == 6);
  CHECK(cases[0].spec.name == "bench.json:f16/f16,n_depth=0,pp512");
  CHECK(cases[5].spec.name == "bench.json:q8_0/q5_1,n_depth=4096,tg128");
  CHECK(ValueOf(cases[0], "prompt_tokens_per_second") == 812.4);
  CHECK(cases[0].measured.Find("decode_gate_tps") == nullptr);
  CHECK(ValueOf(cases[1], "decode_gate_tps") == 61.35);
  CHECK(*cases[1].measured.Find("decode_gate_tps")->noise == Approx(0.8));
  CHECK(cases[1].measured.Find("prompt_tokens_per_second") == nullptr);
  CHECK(Type(cases[3], "type_v") == "q5_1");
  const auto lines = ReadLogs(KVTOOL_TESTDATA "/llamacpp/logs/bench.jsonl").cases;
  REQUIRE(lines.size() == 6);
  CHECK(ValueOf(lines[5], "decode_gate_tps") == 47.1);
}

TEST_CASE("of equal tests the slower decides, other output around them is passed over",
          "[llama-logs]") {
  const auto cases = ReadLog(
      "ggml_cuda_init: found 1 devices\n[\n"
      R"({"n_prompt": 512, "n_gen": 0, "avg_ts": 90, "stddev_ts": -nan},
         {"n_prompt": 512, "n_gen": 0, "avg_ts": 80.0, "stddev_ts": 1},
         {"n_prompt": 1024, "n_gen": 0, "avg_ts": 70},
         {"n_prompt": 512, "n_gen": 128, "avg_ts": 7}])"
      "\nllama_perf: done\n",
      "b");
  REQUIRE(cases.size() == 2);
  CHECK(cases[0].spec.name == "b:pp512");
  CHECK(ValueOf(cases[0], "prompt_tokens_per_second") == 80);
  CHECK(cases[0].measured.Find("prompt_tokens_per_second")->where.log == "b, pp512");
  CHECK(cases[1].spec.name == "b:pp1024");
  CHECK(cases[0].measured.Find("decode_gate_tps") == nullptr);
  CHECK(cases[0].warnings.size() == 1);
}

TEST_CASE("the tests of a bench are found between lines with brackets of their own",
          "[llama-logs]") {
  const std::string one = R"({"build_commit": "a]b}", "n_prompt": 512, "n_gen": 0, "avg_ts": 9})",
                    two = R"({"n_prompt": 0, "n_gen": 64, "avg_ts": 5, "x": {"y": ["{"]}})";
  for (const std::string& text :
       {"[2026-11-29] loading [1/2]\n[\nggml_cuda_init: found 1 devices:\n  " + one +
            ",\nllama-bench: benchmark 2/2: [warmup]\n  " + two + "\n]\nllama_perf: [done]\n",
        "{not a test}\n" + one + "\r\n[done] 1\n" + two + "\n{\"level\": \"INFO\"}\n",
        "[" + one + "]\n[ " + two + " ]", "[\n\n  " + one + ",\n" + two + "\n]"}) {
    INFO(text);
    const auto cases = ReadLog(text, "a.log");
    REQUIRE(cases.size() == 2);
    CHECK(ValueOf(cases[0], "prompt_tokens_per_second") == 9);
    CHECK(ValueOf(cases[1], "decode_gate_tps") == 5);
  }
  for (const std::string& cut : {std::string("["), std::string(" [\n"), "[\n" + one + ",\n",
                                 "[" + one.substr(0, 40), "noise\n[" + one + "\nkilled\n"}) {
    INFO(cut);
    CHECK(ReadLog(cut, "a.log").back().first_failure() != nullptr);
  }
  CHECK(IsCut(ReadOne(R"({"build_commit": "a", "tests": [)" + one + "]}")));
}

TEST_CASE("sizes of a bench's tests are settings of its cases", "[llama-logs]") {
  const auto cases = ReadLog(
      R"([{"n_prompt": 1024, "n_gen": 0, "avg_ts": 9}, {"n_prompt": 512, "n_gen": 0, "avg_ts": 8},
          {"n_prompt": 0, "n_gen": 64, "avg_ts": 5}, {"n_prompt": 9, "n_gen": 9, "avg_ts": 1}])",
      "b");
  REQUIRE(cases.size() == 3);
  CHECK(gate::NumberOr(cases[0].spec.params, "n_prompt", 0) == 1024);
  CHECK(gate::NumberOr(cases[2].spec.params, "n_gen", 0) == 64);
  CHECK(IsCut(ReadOne(R"([{"n_prompt": 9, "n_gen": 9, "avg_ts": 1}])")));
}

TEST_CASE("hostile benches are refused", "[llama-logs]") {
  const std::string good = R"({"n_prompt": 1, "n_gen": 0, "avg_ts": 2})";
  for (const std::string& cut : {"[" + good, "[" + good + ",3]"}) {
    const auto cases = ReadLog(cut, "a.json");
    REQUIRE(cases.size() == 2);
    CHECK(cases[1].spec.name == "a.json");
    CHECK(cases[1].first_failure() != nullptr);
  }
  CHECK(Refusal(R"([{"n_prompt": 1, "n_prompt": 1, "avg_ts": 1}])") == Finding::kBadText);
  CHECK(Refusal(R"([{"n_prompt": 1, "avg_ts": [] }])") == Finding::kBadField);
  std::string many = "[";
  for (int i = 0; i < 10001; ++i) many += good + ",";
  many.back() = ']';
  CHECK(Refusal(many) == Finding::kLimit);
  many = "[";
  for (int i = 0; i < 1001; ++i) {
    many += R"({"n_prompt": 1, "n_gen": 0, "avg_ts": 2, "x": )" + std::to_string(i) + "},";
  }
  many.back() = ']';
  CHECK(Refusal(many) == Finding::kLimit);
  CHECK(Refusal(std::string(17 << 20, ' ') + "[" + good + "]") == Finding::kLimit);
  const auto names =
      ReadLog("[" + good + R"(,{"n_prompt":1,"n_gen":0,"avg_ts":1e999,"type_k":"\u001b[2J)" +
                  std::string(300, 'x') + R"("}])",
              "b");
  REQUIRE(names.size() == 2);
  CHECK(Printable(names[1].spec.name) == names[1].spec.name);
  CHECK(names[1].spec.name.size() <= 160);
  CHECK(names[1].measured.Find("prompt_tokens_per_second")->undefined);
}

TEST_CASE("a folder's logs are cases of their names, also in UTF-16", "[llama-logs]") {
  test::TempDir dir;
  std::string wide;
  for (const char c : std::string_view(" eval time = 2000 ms / 100 runs\n")) wide += {c, '\0'};
  std::ofstream(dir.path() / "b.log", std::ios::binary) << wide;
  std::ofstream(dir.path() / "a.txt") << "Mean    KLD: 0.5\n";
  std::ofstream(dir.path() / "c.txt") << "nothing\n";
  std::filesystem::create_directory(dir.path() / "old");
  std::ofstream(dir.path() / "b.err") << "ggml_cuda_init: found 1 CUDA devices:\n";
  std::ofstream(dir.path() / "died.err") << "ggml_cuda_init: found 1 CUDA devices:\n";
  std::ofstream(dir.path() / "d.bin") << " eval time = 2000 ms / 100 runs\n";
  const auto [cases, left_out] = ReadLogs(dir.path());
  CHECK(left_out == std::vector<std::string>{"c.txt", "b.err", "old/"});
  REQUIRE(cases.size() == 3);
  CHECK(IsCut(cases[2]));
  CHECK(cases[0].spec.name == "a.txt");
  CHECK(ValueOf(cases[1], "decode_gate_tps") == 50);
}

TEST_CASE("an empty log beside others is cut, and a stream that tells of a fault is no other one",
          "[llama-logs]") {
  test::TempDir dir;
  std::ofstream(dir.path() / "empty.json") << "[ ]\n";
  std::ofstream(dir.path() / "bench.json").flush();
  CHECK(ReadLogs(dir.path()).cases.empty());
  std::ofstream(dir.path() / "good.log") << " eval time = 2000 ms / 100 runs\n";
  std::ofstream(dir.path() / "quiet.err").flush();
  std::ofstream(dir.path() / "good.err") << "main: error: failed to load model b.gguf\n";
  const auto cases = ReadLogs(dir.path()).cases;
  REQUIRE(cases.size() == 4);
  CHECK(cases[0].spec.name == "good.err");
  CHECK(cases[0].first_failure() != nullptr);
  CHECK(cases[2].spec.name == "bench.json");
  CHECK(IsCut(cases[2]));
  CHECK(cases[3].spec.name == "empty.json");
}

TEST_CASE("a folder has at most 1000 cases, however many benches they come from", "[llama-logs]") {
  test::TempDir dir;
  for (const int tests : {1000, 1}) {
    std::ofstream bench(dir.path() / fmt::format("{}.jsonl", tests));
    for (int i = 0; i < tests; ++i) {
      bench << fmt::format("{{\"n_prompt\": 1, \"n_gen\": 0, \"avg_ts\": 2, \"x\": {}}}\n", i);
    }
    bench.close();
    if (tests == 1000) CHECK(ReadLogs(dir.path()).cases.size() == 1000);
  }
  CHECK(test::FindingOf([&] { ReadLogs(dir.path()); }) == Finding::kLimit);
}

}  // namespace
}  // namespace kv::llamacpp
