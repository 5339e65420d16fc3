// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Documents that MNN's offline experiment wrote about a tree of dumps.
#include <fmt/format.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "formats/mnn/mnn.h"
#include "lib/engines/mnn/offline/offline.h"
#include "tests/golden/golden.h"

namespace kv::golden {
namespace {

using nlohmann::json;

// Returns the options that a document states: all but three, which the manifest's command gives.
mnn::offline::Options OptionsOf(const json& golden, const std::string& command) {
  mnn::offline::Options options;
  const auto choose = [&](auto& to, std::initializer_list<std::decay_t<decltype(to)>> all,
                          const char* key) {
    const std::string word = golden.at(key);
    bool found = false;
    for (const auto value : all) {
      if (mnn::offline::Name(value) != word) continue;
      to = value;
      found = true;
    }
    REQUIRE(found);
  };
  using namespace mnn::offline;
  choose(options.stage, {Stage::kBoth, Stage::kPrefill, Stage::kDecode}, "stage");
  choose(options.scope, {Scope::kFrontN, Scope::kLayerRange, Scope::kLayerIds}, "scope");
  choose(
      options.entry_mode,
      {EntryMode::kPerMeta, EntryMode::kAggregate, EntryMode::kChunked, EntryMode::kChunkedGrouped},
      "entry_mode");
  choose(options.codec, {CodecMode::kLegacy, CodecMode::kAdaptive}, "codec_mode");
  options.front_n = golden.at("front_n");
  options.layer_start = golden.at("layer_start");
  options.layer_end = golden.at("layer_end");
  options.layer_ids = golden.at("layer_ids").get<std::set<int64_t>>();
  options.chunk_tokens = golden.at("online_chunk_seq");
  options.framing_bytes = golden.at("online_framing_bytes");
  options.aggregate_by_stage = golden.at("aggregate_by_stage");
  options.bitshuffle = golden.at("bitshuffle");
  options.block_tokens = golden.at("adaptive_block_seq");
  options.zstd_level = golden.at("zstd_level");
  for (size_t i = 0; i < kStreams; ++i) {
    const std::string key = fmt::format("{}_predictors", Name(static_cast<Stream>(i)));
    std::string list;
    for (const std::string& name : golden.at(key).get<std::vector<std::string>>())
      list += name + ",";
    options.predictors[i] = ParsePredictorList(list, key);
  }
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    if (word == "--strict-fp16") options.strict_fp16 = true;
    if (word == "--min-seq-len") words >> options.min_tokens;
    if (word == "--max-seq-len") words >> options.max_tokens;
  }
  return options;
}

// With the zstd version that made the goldens the documents must be equal. With another one, sizes
// and ratios may differ by 1 %, and counts of choices, which depend on sizes, are not compared.
void CheckDocument(json got, const json& golden, bool same_library) {
  if (same_library) {
    CHECK(got == golden);
    return;
  }
  for (const auto& [key, expected] : golden.items()) {
    INFO(key);
    REQUIRE(got.contains(key));
    if (key.ends_with("_mode_counts")) continue;
    const bool sized = key.ends_with("compressed_bytes") || key.ends_with("ratio");
    if (!sized) CHECK(got[key] == expected);
    if (sized) CHECK(got[key].get<double>() == Approx(expected.get<double>()).epsilon(0.01));
  }
  CHECK(got.size() == golden.size());
}

std::string ReadText(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

void CheckMnnOffline(Run& run) {
  const std::filesystem::path root = Root() / "mnn/offline";
  if (!std::filesystem::exists(root / "dump")) return;
  const json manifest = run.Json("mnn/manifest.json");
  const bool same_library =
      manifest.value(nlohmann::json::json_pointer("/toolchain/python"), std::string())
          .find(fmt::format("libzstd {})", ZSTD_versionString())) != std::string::npos;
  const Source source = Source::Open(root / "dump");
  const std::vector<DumpEntry> entries = mnn::ReadOfflineEntries(source);
  const json commands =
      manifest.value(nlohmann::json::json_pointer("/files/offline~1/commands"), json::object());
  for (const auto& [name, command] : commands.items()) {
    const auto path = run.File("mnn/offline/" + name);
    if (!path) continue;
    INFO(*path);
    const json golden = json::parse(ReadText(*path));
    const mnn::offline::Options options = OptionsOf(golden, command);
    const std::string dump_dir = golden.at("dump_dir");
    mnn::offline::Result first;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      first = mnn::offline::Simulate(entries, options, pool);
      CheckDocument(
          json::parse(
              ToJson(mnn::offline::DocumentFields().Object({dump_dir, options, first})).dump()),
          golden, same_library);
    }
    run.Checked();
    std::filesystem::path markdown = *path;
    markdown.replace_extension(".md");
    if (!std::filesystem::exists(markdown) || !same_library) continue;
    CHECK(mnn::offline::ResultMarkdown(dump_dir, options, first) == ReadText(markdown));
    run.Checked();
  }
}

}  // namespace kv::golden
