// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/offline/result_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kv::mnn::offline {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kCodec = "fp16_gear_predictive_zstd";

// Counts in the order in which predictors compete; those of the legacy mode compete with nobody.
std::vector<std::pair<std::string_view, uint64_t>> CountsOf(const Options& options,
                                                            const Result& result, Stream stream) {
  const auto& counts = result.mode_counts[stream];
  std::vector<std::pair<std::string_view, uint64_t>> ordered;
  if (options.codec == CodecMode::kLegacy) {
    for (const auto& [predictor, count] : counts) ordered.emplace_back(Name(predictor), count);
    return ordered;
  }
  for (const Predictor predictor : options.predictors[stream]) {
    const auto at = counts.find(predictor);
    if (at != counts.end()) ordered.emplace_back(Name(predictor), at->second);
  }
  return ordered;
}

Json NamesOf(const std::vector<Predictor>& predictors) {
  Json names = Json::array();
  for (const Predictor predictor : predictors) names.push_back(Name(predictor));
  return names;
}

// Python's words for what it prints without being asked.
std::string PythonBool(bool value) { return value ? "True" : "False"; }

std::string PythonDict(const std::vector<std::pair<std::string_view, uint64_t>>& counts) {
  std::vector<std::string> items;
  for (const auto& [name, count] : counts) items.push_back(fmt::format("'{}': {}", name, count));
  return fmt::format("{{{}}}", fmt::join(items, ", "));
}

std::string StreamTitle(Stream stream) {
  std::string title(Name(stream));
  title[0] = static_cast<char>(title[0] - 'a' + 'A');
  std::replace(title.begin(), title.end(), '_', ' ');
  return title;
}

}  // namespace

Json ResultJson(const std::string& dump_dir, const Options& options, const Result& result) {
  Json json = {{"schema_version", 3},
               {"dump_dir", dump_dir},
               {"stage", Name(options.stage)},
               {"scope", Name(options.scope)},
               {"front_n", options.front_n},
               {"layer_start", options.layer_start},
               {"layer_end", options.layer_end},
               {"layer_ids", options.layer_ids},
               {"selected_layers", result.layers},
               {"selected_entries", result.entries},
               {"selected_dumps", result.dumps},
               {"entry_mode", Name(options.entry_mode)},
               {"online_chunk_seq", options.chunk_tokens},
               {"online_framing_bytes", options.framing_bytes},
               {"aggregate_by_stage", options.aggregate_by_stage},
               {"aggregate_groups", result.groups},
               {"online_chunks", result.chunks},
               {"codec", kCodec},
               {"codec_mode", Name(options.codec)},
               {"bitshuffle", options.bitshuffle},
               {"adaptive_block_seq", options.block_tokens}};
  for (size_t i = 0; i < kStreams; ++i) {
    json[fmt::format("{}_predictors", Name(static_cast<Stream>(i)))] =
        NamesOf(options.predictors[i]);
  }
  json["zstd_level"] = options.zstd_level;
  const Sizes total = result.total();
  json.update(Json{{"k_raw_bytes", result.k.raw},
                   {"k_compressed_bytes", result.k.compressed},
                   {"v_raw_bytes", result.v.raw},
                   {"v_compressed_bytes", result.v.compressed},
                   {"k_chunk_meta_bytes", result.k.chunk_meta},
                   {"v_chunk_meta_bytes", result.v.chunk_meta},
                   {"raw_bytes", total.raw},
                   {"compressed_bytes", total.compressed},
                   {"k_lossless_ratio", result.k.ratio()},
                   {"v_lossless_ratio", result.v.ratio()},
                   {"lossless_ratio", total.ratio()},
                   {"weighted_lossless_ratio", total.ratio()}});
  for (size_t i = 0; i < kStreams; ++i) {
    const auto stream = static_cast<Stream>(i);
    Json counts = Json::object();
    for (const auto& [name, count] : CountsOf(options, result, stream)) {
      counts[std::string(name)] = count;
    }
    json[fmt::format("{}_mode_counts", Name(stream))] = std::move(counts);
  }
  json["scanned_entries"] = result.scanned;
  json["converted_fp32_entries"] = result.converted;
  json["skipped_entries"] = result.skipped;
  json["skip_reasons"] = Json::object();
  for (const auto& [reason, count] : result.skip_reasons) json["skip_reasons"][reason] = count;
  return json;
}

std::string ResultMarkdown(const std::string& dump_dir, const Options& options,
                           const Result& result) {
  std::string text = "# H2O v6 Offline Lossless Summary\n\n";
  const auto item = [&](std::string_view name, const auto& value) {
    text += fmt::format("- {}: {}\n", name, value);
  };
  const auto code = [&](std::string_view name, const auto& value) {
    text += fmt::format("- {}: `{}`\n", name, value);
  };
  const auto ratio = [&](std::string_view name, double value) {
    text += fmt::format("- {}: {:.4f}\n", name, value);
  };
  code("Dump dir", dump_dir);
  code("Stage", Name(options.stage));
  code("Scope", Name(options.scope));
  item("Selected entries", result.entries);
  item("Selected layers", fmt::format("[{}]", fmt::join(result.layers, ", ")));
  item("Selected dumps", result.dumps);
  code("Entry mode", Name(options.entry_mode));
  item("Online chunk seq", options.chunk_tokens);
  item("Online framing bytes", options.framing_bytes);
  code("Aggregate by stage", PythonBool(options.aggregate_by_stage));
  item("Aggregate groups", result.groups);
  item("Online chunks", result.chunks);
  code("Codec mode", Name(options.codec));
  code("Bitshuffle", PythonBool(options.bitshuffle));
  item("Zstd level", options.zstd_level);
  code("Codec", kCodec);
  text += "\n## Ratios\n\n";
  ratio("K lossless ratio", result.k.ratio());
  ratio("V lossless ratio", result.v.ratio());
  ratio("Overall lossless ratio", result.ratio());
  ratio("Weighted lossless ratio", result.ratio());
  text += "\n## Bytes\n\n";
  item("K raw bytes", result.k.raw);
  item("K compressed bytes", result.k.compressed);
  item("V raw bytes", result.v.raw);
  item("V compressed bytes", result.v.compressed);
  item("K chunk metadata bytes", result.k.chunk_meta);
  item("V chunk metadata bytes", result.v.chunk_meta);
  item("Total raw bytes", result.total().raw);
  item("Total compressed bytes", result.total().compressed);
  text += "\n## Predictor Usage\n\n";
  for (size_t i = 0; i < kStreams; ++i) {
    const auto stream = static_cast<Stream>(i);
    item(StreamTitle(stream) + " mode counts", PythonDict(CountsOf(options, result, stream)));
  }
  text += "\n## Diagnostics\n\n";
  item("Scanned entries", result.scanned);
  item("Converted fp32->fp16 entries", result.converted);
  item("Skipped entries", result.skipped);
  if (result.skip_reasons.empty()) return text;
  text += "- Skip reasons:\n";
  auto sorted = result.skip_reasons;
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [reason, count] : sorted) text += fmt::format("  - {}: {}\n", reason, count);
  return text;
}

}  // namespace kv::mnn::offline
