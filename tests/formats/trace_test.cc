// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/trace/trace.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "formats/registry.h"
#include "formats/safetensors/safetensors.h"
#include "lib/core/base/half.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/attention/probabilities.h"
#include "tests/support/memory_sink.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_to_write.h"

namespace kv::trace_test {
namespace {

// Tensors and metadata for a safetensors trace in memory.
struct Written {
  std::vector<std::unique_ptr<Bytes>> storage;
  std::vector<TensorToWrite> tensors;
  TensorMetadata metadata = {{"kvtool.trace", "1"}};

  void Add(std::string name, DType dtype, std::vector<uint64_t> shape) {
    TensorView view = ContiguousView(dtype, std::move(shape), nullptr);
    storage.push_back(std::make_unique<Bytes>(view.bytes()));
    view.data = storage.back()->data();
    tensors.push_back(test::ToWrite(std::move(name), view));
  }
  std::string Write(const test::TempDir& folder, const std::string& name = "t.safetensors") const {
    MemorySink sink;
    WriteSafetensorsFile(tensors, metadata, sink);
    return folder.WriteFile(name, sink.bytes()).string();
  }
};

std::string Failure(const std::string& path, Finding expected) {
  try {
    OpenTrace(path, {});
  } catch (const Error& error) {
    CHECK(error.finding() == expected);
    return error.what();
  }
  FAIL("opened " << path);
  return {};
}

std::string WriteText(const test::TempDir& folder, std::string_view text) {
  return folder.WriteFile("stream.jsonl", AsBytes(text)).string();
}

constexpr std::string_view kHeader =
    R"({"kvtool.trace":"1","params":{"layers":2,"num_head":4,"head_dim":8,"prompt_tokens":6,"h2o_block_tokens":2}})"
    "\n";

const std::string kReal = std::string(KVTOOL_TESTDATA) + "/trace/";

}  // namespace

TEST_CASE("a safetensors trace says what it holds", "[trace]") {
  const test::TempDir folder;
  Written written;
  written.Add("q.3", DType::kF16, {5, 4, 8});
  written.Add("k.3", DType::kF16, {9, 2, 8});
  written.Add("a.3", DType::kF32, {4, 5, 9});
  written.Add("a.1", DType::kBF16, {4, 5, 3});
  written.Add("tokens", DType::kI32, {9});
  written.Add("positions", DType::kI32, {9});
  written.metadata.insert({{"prompt_tokens", "6"},
                           {"q_start", "4"},
                           {"scale", "0.25"},
                           {"softcap", "30"},
                           {"window", "7"},
                           {"engine", "some engine"}});
  const AttentionTrace trace = OpenTrace(written.Write(folder), {});
  CHECK(trace.format == "safetensors");
  CHECK(trace.level == TraceLevel::kProbabilities);  // layer 1 has no queries, only probabilities
  CHECK(trace.query_heads == 4);
  CHECK(trace.kv_heads == 2);
  CHECK(trace.head_dim == 8);
  CHECK(trace.rows == 5);
  CHECK(trace.q_start == 4);
  CHECK(trace.end_position() == 9);
  CHECK(trace.prompt_tokens == 6u);
  CHECK(trace.scale == 0.25);
  CHECK(trace.softcap == 30);
  CHECK(trace.window == 7);
  CHECK(trace.tokens.size() == 9);
  CHECK(trace.notes.size() == 1);  // positions
  REQUIRE(trace.layers.size() == 2);
  CHECK(trace.Find(2) == nullptr);
  // Probabilities exist for the last three positions.
  CHECK(trace.Find(1)->probabilities[0].key_begin == 6);
  CHECK(trace.Find(3)->probabilities[0].key_begin == 0);
}

TEST_CASE("a folder of safetensors is one trace", "[trace]") {
  const test::TempDir folder;
  for (int layer = 0; layer < 2; ++layer) {
    Written written;
    written.Add("q." + std::to_string(layer), DType::kF16, {5, 4, 8});
    written.Write(folder, "trace/part-" + std::to_string(layer) + ".safetensors");
  }
  CHECK(OpenTrace((folder / "trace").string(), {}).layers.size() == 2);
}

TEST_CASE("traces that contradict themselves are refused", "[trace]") {
  const test::TempDir folder;
  const auto failure = [&](const std::function<void(Written&)>& fill, Finding expected) {
    Written written;
    fill(written);
    return Failure(written.Write(folder), expected);
  };
  CHECK(failure(
            [](Written& w) {
              w.Add("k.0", DType::kF16, {5, 2, 8});
            },
            Finding::kMissingRecord)
            .find("no layer has queries") != std::string::npos);
  CHECK(failure([](Written& w) { w.Add("weight", DType::kF16, {5}); }, Finding::kMissingRecord)
            .find("q.{layer}") != std::string::npos);
  failure(
      [](Written& w) {
        w.Add("q.0", DType::kF16, {5, 4, 8});
        w.metadata.erase("kvtool.trace");
      },
      Finding::kMissingRecord);
  failure(
      [](Written& w) {
        w.Add("q.0", DType::kF16, {5, 4, 8});
        w.metadata["kvtool.trace"] = "2";
      },
      Finding::kUnsupportedVersion);
  for (const auto& [key, value] : std::map<std::string, std::string>{
           {"prompt_tokens", "-1"}, {"q_start", "9999999999"}, {"scale", "nan"}, {"window", "x"}}) {
    INFO(key);
    const std::string name = key, text = value;
    failure(
        [&](Written& w) {
          w.Add("q.0", DType::kF16, {5, 4, 8});
          w.metadata[name] = text;
        },
        Finding::kBadField);
  }
  CHECK(failure(
            [](Written& w) {
              w.Add("q.0", DType::kF16, {5, 4, 8});
              w.Add("q.1", DType::kF16, {6, 4, 8});
            },
            Finding::kBadField)
            .find("6 rows, expected 5") != std::string::npos);
  failure([](Written& w) { w.Add("q.0", DType::kF16, {5, 32}); }, Finding::kBadField);
  failure([](Written& w) { w.Add("q.0", DType::kI32, {5, 4, 8}); }, Finding::kUnsupportedDtype);
  failure(
      [](Written& w) {
        w.Add("q.0", DType::kF16, {5, 4, 8});
        w.Add("a.0", DType::kF16, {8, 5, 5});
      },
      Finding::kBadField);
  CHECK(Failure((folder / "no" / "such").string(), Finding::kOpenFailed).find("npy set") !=
        std::string::npos);
}

TEST_CASE("layers follow rules of their own", "[trace]") {
  const test::TempDir folder;
  Written written;
  for (int layer = 0; layer < 3; ++layer) {
    written.Add("q." + std::to_string(layer), DType::kF16, {5, 4, 8});
  }
  written.metadata.insert({{"scale", "0.25"},
                           {"window", "7"},
                           {"window.1", "0"},
                           {"softcap.1", "30"},
                           {"scale.2", "0.5"},
                           {"window.9", "3"},  // the trace has no layer 9
                           {"a.1", "another's"}});
  const AttentionTrace trace = OpenTrace(written.Write(folder), {});
  const auto rule = [&](uint32_t layer) { return MakeRule(trace, *trace.Find(layer)); };
  CHECK((rule(0).scale == 0.25 && rule(0).softcap == 0 && rule(0).window == 7));
  CHECK((rule(1).scale == 0.25 && rule(1).softcap == 30 && rule(1).window == 0));
  CHECK((rule(2).scale == 0.5 && rule(2).softcap == 0 && rule(2).window == 7));
  for (const auto& [key, value] : std::map<std::string, std::string>{{"scale.x", "1"},
                                                                     {"window.", "1"},
                                                                     {"window.-1", "1"},
                                                                     {"softcap.99999999", "1"},
                                                                     {"scale.0", "-1"},
                                                                     {"window.0", "1.5"},
                                                                     {"softcap.0", "inf"}}) {
    INFO(key);
    Written wrong = {};
    wrong.Add("q.0", DType::kF16, {5, 4, 8});
    wrong.metadata[key] = value;
    Failure(wrong.Write(folder), Finding::kBadField);
  }
}

TEST_CASE("gradients are read at their positions", "[trace]") {
  const test::TempDir folder;
  const auto make = [](std::vector<uint64_t> shape, const char* g_start) {
    Written written;
    written.Add("q.1", DType::kF16, {5, 4, 8});
    written.Add("q.2", DType::kF16, {5, 4, 8});
    written.Add("g.2", DType::kF32, std::move(shape));
    written.metadata.insert({{"q_start", "4"}, {"g_start", g_start}});
    return written;
  };
  Written good = make({2, 3, 4, 6}, "5");
  for (size_t i = 0; i < size_t{2} * 3 * 4 * 6; ++i) {
    StoreLE(good.storage.back()->data() + 4 * i, static_cast<float>(i));
  }
  const AttentionTrace trace = OpenTrace(good.Write(folder), {});
  REQUIRE(trace.gradients);
  CHECK(trace.gradients->begin == 5);
  CHECK(trace.gradients->end() == 8);
  CHECK(trace.gradients->samples == 2);
  CHECK_FALSE(trace.Find(1)->gradients);
  std::vector<float> g(6);
  ReadGradient(trace, *trace.Find(2), 1, 6, 3, g.data());  // ((1 * 3 + 1) * 4 + 3) * 6
  CHECK(g == std::vector<float>{114, 115, 116, 117, 118, 119});

  // By default the rows are taken from the trace itself.
  CHECK(OpenTrace(make({1, 5, 4, 6}, "").Write(folder), {}).gradients->begin == 4);
  const auto refused = [&](std::vector<uint64_t> shape, const char* g_start) {
    return Failure(make(std::move(shape), g_start).Write(folder), Finding::kBadField);
  };
  CHECK(refused({2, 3, 4, 6}, "7").find("positions 7 to 9") != std::string::npos);
  CHECK(refused({2, 3, 4, 6}, "3").find("rows are 4 to 8") != std::string::npos);
  CHECK(refused({2, 3, 5, 6}, "5").find("5 query heads, expected 4") != std::string::npos);
  CHECK(refused({3, 4, 6}, "5").find("expected 4: samples") != std::string::npos);
  refused({0, 3, 4, 6}, "5");
  // Only the last samples may be marked as taken at evicted states.
  const auto marked = [&](const char* evicted) {
    Written written = make({2, 3, 4, 6}, "5");
    written.metadata["g_evicted"] = evicted;
    return written.Write(folder);
  };
  CHECK(trace.gradients->evicted == 0);
  CHECK(OpenTrace(marked("1"), {}).gradients->recorded() == 1);
  CHECK(OpenTrace(marked("2"), {}).gradients->recorded() == 0);
  CHECK(Failure(marked("3"), Finding::kBadField).find("2 samples, but metadata 'g_evicted'") !=
        std::string::npos);
  for (const char* bad : {"-1", "1.5", "some", "99999999999"}) {
    CHECK(Failure(marked(bad), Finding::kBadField).find("metadata 'g_evicted' is") !=
          std::string::npos);
  }
  Written halves = make({2, 3, 4, 6}, "5");
  halves.Add("g.1", DType::kF16, {2, 2, 4, 6});
  CHECK(Failure(halves.Write(folder), Finding::kBadField).find("3 rows of gradients, expected 2") !=
        std::string::npos);
  Written alone = make({2, 3, 4, 6}, "5");
  alone.Add("g.0", DType::kF16, {2, 3, 4, 6});
  CHECK(Failure(alone.Write(folder), Finding::kBadField).find("without q.0 or a.0") !=
        std::string::npos);
  Written whole = make({2, 3, 4, 6}, "5");
  whole.Add("g.1", DType::kI32, {2, 3, 4, 6});
  Failure(whole.Write(folder), Finding::kUnsupportedDtype);
}

TEST_CASE("attentions of torch are a trace of probabilities, step by step", "[trace]") {
  // [batch 2][heads 3][rows][keys]: a prompt of 4, two steps, a window of 3 keys in layer 1.
  const auto make = [](std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors) {
    static const Bytes zeros(1 << 12);
    TensorFile file;
    file.source.path = "attentions.pt";
    for (auto& [name, shape] : tensors) {
      file.tensors.push_back({name, ContiguousView(DType::kF32, shape, zeros.data()), {}});
    }
    return file;
  };
  const AttentionTrace trace = TraceOfTorch(make({{"0/0", {2, 3, 4, 4}},
                                                  {"0/1", {2, 3, 4, 4}},
                                                  {"1/0", {2, 3, 1, 5}},
                                                  {"1/1", {2, 3, 1, 3}},
                                                  {"2/0", {2, 3, 1, 6}},
                                                  {"2/1", {2, 3, 1, 3}},
                                                  {"sequences", {2, 6}}}),
                                            1);
  CHECK(trace.prompt_tokens == 4u);
  CHECK(trace.rows == 6);
  CHECK(trace.query_heads == 3);
  CHECK(trace.notes.size() == 1);
  REQUIRE(trace.layers.size() == 2);
  REQUIRE(trace.layers[1].probabilities.size() == 3);
  CHECK(trace.layers[1].probabilities[2].row_begin == 5);
  CHECK(trace.layers[1].probabilities[2].key_begin == 3);
  CHECK(trace.layers[0].probabilities[2].key_begin == 0);
  std::vector<float> row(6, 1.0f);
  ReadProbabilityRow(trace.layers[1], 2, 5, 6, row.data());
  CHECK(row == std::vector<float>(6, 0.0f));

  const AttentionTrace single =
      TraceOfTorch(make({{"attentions/0", {1, 3, 4, 9}}, {"attentions/1", {1, 3, 4, 9}}}), 0);
  CHECK_FALSE(single.prompt_tokens);
  CHECK(single.layers[1].probabilities[0].key_begin == 0);  // a static cache
  CHECK_THROWS_AS(TraceOfTorch(make({{"0/0", {1, 3, 4, 4}}, {"1/1", {1, 3, 1, 5}}}), 0), Error);
  CHECK_THROWS_AS(TraceOfTorch(make({{"0", {1, 3, 4, 4}}}), 1), Error);
  CHECK_THROWS_AS(TraceOfTorch(make({{"0", {1, 3, 4}}}), 0), Error);
  CHECK_THROWS_AS(TraceOfTorch(make({{"weight", {1, 3, 4, 4}}}), 0), Error);
}

TEST_CASE("a stream of block scores is read call by call", "[trace]") {
  const test::TempDir folder;
  const std::string path =
      WriteText(folder, std::string(kHeader) +
                            "{\"step\":1,\"layer\":0,\"block_acc\":[1,2.5]}\n\n"
                            "{\"step\":1,\"layer\":1,\"block_acc\":[]}\n");
  const AttentionTrace trace = OpenTrace(path, {});
  REQUIRE(trace.block_scores);
  CHECK(trace.level == TraceLevel::kBlockScores);
  CHECK(trace.prompt_tokens == 6u);
  CHECK(trace.block_scores->kv_heads == 4);
  CHECK(trace.block_scores->parameters == TraceParameters{{"h2o_block_tokens", 2.0}});
  for (int pass = 0; pass < 2; ++pass) {  // every reader starts at its first call
    const auto reader = trace.block_scores->open();
    const auto first = reader->Next();
    REQUIRE(first);
    CHECK(first->line == 2);
    CHECK(first->block_sums == std::vector<float>{1.0f, 2.5f});
    const auto second = reader->Next();
    REQUIRE(second);
    CHECK(second->line == 4);
    CHECK(second->layer == 1);
    CHECK_FALSE(reader->Next());
  }
}

TEST_CASE("broken streams are refused with their line", "[trace]") {
  const test::TempDir folder;
  const auto bad_header = [&](std::string_view text, Finding expected) {
    return Failure(WriteText(folder, text), expected);
  };
  bad_header("{\"params\":{}}\n", Finding::kBadVersion);
  bad_header("{\"kvtool.trace\":\"1\"}\n", Finding::kBadField);
  bad_header("{\"kvtool.trace\":\"1\",\"params\":{\"layers\":0}}\n", Finding::kBadField);
  bad_header("{\"kvtool.trace\":\"1\",\"params\":\n", Finding::kBadText);
  for (const std::string_view line :
       {"{\"step\":0,\"layer\":0,\"block_acc\":[]}", "{\"step\":1,\"layer\":-1,\"block_acc\":[]}",
        "{\"step\":1,\"layer\":0}", "{\"step\":1,\"layer\":0,\"block_acc\":[\"x\"]}", "[1]",
        "{\"step\":1"}) {
    INFO(line);
    const AttentionTrace trace =
        OpenTrace(WriteText(folder, std::string(kHeader) + std::string(line)), {});
    const auto reader = trace.block_scores->open();
    try {
      reader->Next();
      FAIL("read");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("line 2") != std::string::npos);
    }
  }
}

TEST_CASE("recomputed probabilities are the recorded ones of a real model", "[trace]") {
  for (const auto& [stem, layer, heads] :
       {std::tuple{"kjv3m", 0u, 2u}, {"kjv3m", 3u, 2u}, {"s260k", 2u, 4u}}) {
    INFO(stem << " layer " << layer);
    const AttentionTrace trace = OpenTrace(kReal + stem, {});
    OpenOptions options;
    options.geometry = FindGeometry(trace);
    const Snapshot snapshot = OpenSnapshot(Source::Open(kReal + stem + ".seq0.bin"), options);
    RequireMatch(trace, snapshot);
    const TraceLayer& rows = *trace.Find(layer);
    REQUIRE(rows.queries);
    REQUIRE(rows.probabilities.size() == 1);
    const uint64_t n = trace.rows, dim = trace.head_dim;
    const std::vector<float> k = GatherFloats(snapshot.Find(layer)->k, 0, n, Order::kHeadTokenDim);
    std::vector<int64_t> positions(n);
    for (uint64_t i = 0; i < n; ++i) positions[i] = static_cast<int64_t>(i);
    std::vector<float> q(n * dim), recorded(n);
    std::vector<double> p(n * n);
    double worst = 0;
    for (uint32_t h = 0; h < trace.query_heads; ++h) {
      ReadQueries(rows, h, 0, n, q.data());
      const float* keys = &k[h / (trace.query_heads / heads) * n * dim];
      AttentionProbabilities({MakeMatrix(q, n, dim), positions}, {{keys, n, dim, dim}, {}, {}, {}},
                             {}, 0, n, p);
      for (uint64_t row = 0; row < n; ++row) {
        ReadProbabilityRow(rows, h, row, n, recorded.data());
        for (uint64_t j = 0; j < n; ++j) {
          worst = std::max(worst, std::abs(p[row * n + j] - static_cast<double>(recorded[j])));
        }
      }
    }
    CHECK(worst < 1e-3);
  }
}

}  // namespace kv::trace_test
