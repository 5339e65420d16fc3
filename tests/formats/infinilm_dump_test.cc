// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/infinilm_dump/infinilm_dump.h"

#include <catch2/catch.hpp>

#include "formats/registry.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/engines/infinilm/compressor.h"
#include "tests/support/mlp_weights.h"
#include "tests/support/temp_dir.h"

namespace kv::infinilm_dump_test {
namespace {

constexpr std::string_view kMeta =
    R"({"layers": 2, "heads": 3, "head_dim": 4, "seq_len_in": 5, "seq_len_out": 2,
        "compression_factor": 3, "min_seq_len": 1, "it_len": [0, 0]})";

// Makes a folder in memory; sizes of files are given in values of two bytes.
Source Folder(std::string_view meta, std::optional<uint64_t> input,
              std::optional<uint64_t> output) {
  Source source;
  source.path = "dump";
  source.is_folder = true;
  const auto add = [&](std::string_view name, Bytes bytes) {
    source.files.push_back({std::string(name), FileSource::FromBytes(std::move(bytes), "")});
  };
  if (input) add(infinilm::kInputName, Bytes(*input * 2));
  const ByteSpan text = AsBytes(meta);
  add(infinilm::kMetaName, {text.begin(), text.end()});
  if (output) add(infinilm::kOutputName, Bytes(*output * 2));
  return source;
}

constexpr uint64_t kInput = 2 * 2 * 3 * 5 * 4, kOutput = 2 * 2 * 3 * 2 * 4;

std::optional<Finding> Refusal(std::string_view meta, std::optional<uint64_t> input = kInput,
                               std::optional<uint64_t> output = kOutput,
                               const std::string& layout = "") {
  OpenOptions options;
  options.layout = layout;
  try {
    infinilm::OpenDump(Folder(meta, input, output), options);
  } catch (const Error& error) {
    return error.finding();
  }
  return std::nullopt;
}

std::string With(std::string_view from, std::string_view to) {
  std::string text(kMeta);
  text.replace(text.find(from), from.size(), to);
  return text;
}

}  // namespace

TEST_CASE("an InfiniLM dump is recognised by its meta and a file beside it", "[infinilm]") {
  CHECK(infinilm::ProbeDump(Folder(kMeta, kInput, kOutput)) == Confidence::kCertain);
  CHECK(infinilm::ProbeDump(Folder(kMeta, {}, kOutput)) == Confidence::kCertain);
  CHECK(infinilm::ProbeDump(Folder(kMeta, {}, {})) == Confidence::kNo);
  CHECK(infinilm::ProbeDump(Folder("{}", kInput, {})) == Confidence::kNo);
  Source file = Folder(kMeta, kInput, {});
  file.is_folder = false;
  CHECK(infinilm::ProbeDump(file) == Confidence::kNo);
}

TEST_CASE("the two files of a dump have different axis orders", "[infinilm]") {
  const test::TempDir folder;
  ThreadPool pool(1);
  const CompressorWeights weights = test::MakeWeights({});
  const Snapshot cache = CastSnapshot(test::MakeCache({.tokens = 20}), DType::kF16, pool);
  const Snapshot shorter = CastSnapshot(test::MakeCache({.tokens = 8}, 2), DType::kF16, pool);
  const StepPlan plan = PlanStep(cache, weights, {.image_len = 7});
  REQUIRE(plan.new_length == 8);
  const std::string path = (folder / "dump").string();
  infinilm::WriteDumpPair(cache, shorter, plan, path, Overwrite::kRefuse);

  OpenOptions options;
  const Snapshot input = OpenSnapshot(Source::Open(path), options);
  options.layout = "output";
  const Snapshot output = OpenSnapshot(Source::Open(path), options);
  CHECK(input.layers[0].k.pieces[0].token.step == 4 * 2);       // [heads][tokens][dim]
  CHECK(output.layers[0].k.pieces[0].token.step == 3 * 4 * 2);  // [tokens][heads][dim]
  for (size_t i = 0; i < 2; ++i) {
    CHECK(Gather(*input.layers[i].v, 0, 20, Order::kTokenHeadDim) ==
          Gather(*cache.layers[i].v, 0, 20, Order::kTokenHeadDim));
    CHECK(Gather(*output.layers[i].v, 0, 8, Order::kTokenHeadDim) ==
          Gather(*shorter.layers[i].v, 0, 8, Order::kTokenHeadDim));
  }
  const infinilm::DumpMeta meta =
      infinilm::ParseDumpMeta(Source::Open(path).Find("meta.json")->data->bytes());
  CHECK(meta.seq_len_in == 20);
  CHECK(meta.seq_len_out == 8);
  CHECK(meta.compression_factor == 3);
  CHECK(meta.image_len == 7);
  CHECK_THROWS_AS(infinilm::WriteDumpPair(cache, shorter, plan, path, Overwrite::kRefuse), Error);
}

TEST_CASE("one cache alone is written as a dump in which nothing was compressed", "[infinilm]") {
  const test::TempDir folder;
  ThreadPool pool(1);
  const Snapshot cache = CastSnapshot(test::MakeCache({}), DType::kF16, pool);
  const std::string path = (folder / "dump").string();
  infinilm::WriteDump(cache, path, Overwrite::kRefuse);
  const Snapshot back = OpenSnapshot(Source::Open(path), {});
  CHECK(back.format == "infinilm-dump");
  CHECK(back.layers.size() == cache.layers.size());
  CHECK(Gather(back.layers[1].k, 0, 20, Order::kTokenHeadDim) ==
        Gather(cache.layers[1].k, 0, 20, Order::kTokenHeadDim));
  CHECK(back.source.Find("output_kv.bin") == nullptr);
}

TEST_CASE("a dump holds one shape of f16", "[infinilm]") {
  const test::TempDir folder;
  const std::string path = (folder / "dump").string();
  ThreadPool pool(1);
  const auto refusal = [&](const Snapshot& cache) -> std::optional<Finding> {
    try {
      infinilm::WriteDump(cache, path, Overwrite::kRefuse);
    } catch (const Error& error) {
      return error.finding();
    }
    return std::nullopt;
  };
  CHECK(refusal(test::MakeCache({})) == Finding::kUnsupportedDtype);
  Snapshot cache = CastSnapshot(test::MakeCache({}), DType::kF16, pool);
  cache.layers[1].v.reset();
  CHECK(refusal(cache) == Finding::kUnsupportedLayout);
  cache = CastSnapshot(test::MakeCache({}), DType::kF16, pool);
  cache.layers[1].k.pieces[0].tokens = 3;
  CHECK(refusal(cache) == Finding::kUnsupportedLayout);
  cache.layers.clear();
  CHECK(refusal(cache) == Finding::kUnsupportedLayout);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("the file that is there is read, or the one asked for", "[infinilm]") {
  CHECK(Refusal(kMeta) == std::nullopt);
  CHECK(Refusal(kMeta, {}, kOutput) == std::nullopt);
  CHECK(Refusal(kMeta, kInput, {}, "output") == Finding::kMissingRecord);
  CHECK(Refusal(kMeta, {}, kOutput, "input") == Finding::kMissingRecord);
  CHECK(Refusal(kMeta, kInput, kOutput, "both") == Finding::kUsage);
}

TEST_CASE("damaged dumps are refused", "[infinilm]") {
  CHECK(Refusal(kMeta, kInput - 1) == Finding::kSizeMismatch);
  CHECK(Refusal(kMeta, kInput + 1) == Finding::kSizeMismatch);
  CHECK(Refusal("[]") == Finding::kBadText);
  CHECK(Refusal("{") == Finding::kBadText);
  CHECK(Refusal(With("\"layers\": 2,", "")) == Finding::kMissingRecord);
  CHECK(Refusal(With("\"layers\": 2", "\"layers\": 0")) == Finding::kBadField);
  CHECK(Refusal(With("\"layers\": 2", "\"layers\": -2")) == Finding::kBadField);
  CHECK(Refusal(With("\"layers\": 2", "\"layers\": 2.0")) == Finding::kBadField);
  CHECK(Refusal(With("\"layers\": 2", "\"layers\": 10001")) == Finding::kBadField);
  CHECK(Refusal(With("\"heads\": 3", "\"heads\": \"3\"")) == Finding::kBadField);
  CHECK(Refusal(With("\"heads\": 3", "\"heads\": 4294967296")) == Finding::kBadField);
  CHECK(Refusal(With("[0, 0]", "[0]")) == Finding::kBadField);
  CHECK(Refusal(With("[0, 0]", "7")) == Finding::kBadField);
  // The product of these extents exceeds 64 bits.
  std::string huge = With("\"heads\": 3", "\"heads\": 4294967295");
  huge.replace(huge.find("\"head_dim\": 4"), 13, "\"head_dim\": 4294967295");
  CHECK(Refusal(huge) == Finding::kOverflow);
  CHECK(Refusal(std::string(kMeta) + std::string(infinilm::kMostMetaBytes, ' ')) ==
        Finding::kLimit);
}

}  // namespace kv::infinilm_dump_test
