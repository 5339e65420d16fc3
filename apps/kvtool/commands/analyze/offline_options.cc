// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/analyze/offline_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/line/options.h"

namespace kv {
namespace {

template <typename T>
T Chosen(const std::string& word, std::initializer_list<T> all) {
  return *std::find_if(all.begin(), all.end(), [&](T value) { return Name(value) == word; });
}

std::string FlagOf(mnn::offline::Stream stream) {
  std::string flag = fmt::format("--{}-predictors", Name(stream));
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace

void OfflineOptions::Declare(CommandLine& line) {
  const char* group =
      "MNN's offline experiment, with --offline-codec (names and defaults of its script)";
  const Option needed =
      line.Add("--offline-codec", codec, "Codec to simulate: adaptive (adaptive_v22) or legacy")
          .OneOf({"adaptive", "adaptive_v22", "legacy"})
          .Group(group);
  const auto add = [&](const char* flag, auto& to, const char* text) {
    return line.Add(flag, to, text).Needs(needed).Group(group);
  };
  const auto add_flag = [&](const char* flag, bool& to, const char* text) {
    line.AddFlag(flag, to, text).Needs(needed).Group(group);
  };
  constexpr int64_t kMost = int64_t{1} << 40;
  add("--entry-mode", entry_mode, "per_meta, aggregate, chunked, chunked_grouped (per_meta)")
      .OneOf({"per_meta", "aggregate", "chunked", "chunked_grouped"});
  add("--stage", stage, "prefill, decode or both (both)").OneOf({"prefill", "decode", "both"});
  add("--scope", scope, "front_n, layer_range or layer_ids (front_n)")
      .OneOf({"front_n", "layer_range", "layer_ids"});
  add("--front-n", values.front_n, "Layers of scope front_n (2)").Between(int64_t{1}, kMost);
  add("--layer-start", values.layer_start, "First layer of scope layer_range (2)");
  add("--layer-end", values.layer_end, "Last layer of scope layer_range, -1 = all (-1)");
  add("--layer-ids", layer_ids, "Layers of scope layer_ids, e.g. 0,2");
  add("--zstd-level", values.zstd_level, "zstd level, also of --distribution and --packed (3)")
      .Between(-131072, 22);
  add("--online-chunk-seq", values.chunk_tokens, "Tokens per chunk, 0 = whole (0)")
      .Between(int64_t{0}, kMost);
  add("--online-framing-bytes", values.framing_bytes, "Bytes that each chunk adds (16)")
      .Between(int64_t{0}, kMost);
  add("--adaptive-block-seq", values.block_tokens, "Tokens per choice of predictor (64)")
      .Between(int64_t{1}, kMost);
  add("--min-seq-len", values.min_tokens, "Leave shorter entries out").Between(int64_t{0}, kMost);
  add("--max-seq-len", values.max_tokens, "Leave longer entries out").Between(int64_t{0}, kMost);
  add_flag("--aggregate-by-stage", values.aggregate_by_stage, "Join prefill and decode separately");
  add_flag("--bitshuffle", values.bitshuffle, "Shuffle bits before zstd");
  add_flag("--strict-fp16", values.strict_fp16, "Leave f32 out instead of rounding it to f16");
  for (size_t i = 0; i < mnn::offline::kStreams; ++i) {
    const auto stream = static_cast<mnn::offline::Stream>(i);
    add(FlagOf(stream).c_str(), predictors[i], "Candidates in their order, e.g. raw,delta_seq");
  }
  add("--offline-json-out", json_out, "Write the script's own JSON document");
  add("--offline-md-out", md_out, "Write the script's own Markdown summary");
}

std::optional<mnn::offline::Options> OfflineOptions::Resolve() const {
  if (codec.empty()) return std::nullopt;
  using namespace mnn::offline;
  Options options = values;
  options.codec = codec == "legacy" ? CodecMode::kLegacy : CodecMode::kAdaptive;
  options.stage = Chosen(stage, {Stage::kBoth, Stage::kPrefill, Stage::kDecode});
  options.scope = Chosen(scope, {Scope::kFrontN, Scope::kLayerRange, Scope::kLayerIds});
  options.entry_mode = Chosen(entry_mode, {EntryMode::kPerMeta, EntryMode::kAggregate,
                                           EntryMode::kChunked, EntryMode::kChunkedGrouped});
  if (!layer_ids.empty()) {
    const std::vector<uint32_t> ids = ParseIndexList(layer_ids, "--layer-ids");
    options.layer_ids = {ids.begin(), ids.end()};
  }
  if (options.scope == Scope::kLayerIds && options.layer_ids.empty()) {
    throw Error(Finding::kUsage, "--scope layer_ids: give --layer-ids");
  }
  for (size_t i = 0; i < kStreams; ++i) {
    if (predictors[i].empty()) continue;
    options.predictors[i] = ParsePredictorList(predictors[i], FlagOf(static_cast<Stream>(i)));
  }
  return options;
}

}  // namespace kv
