// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The result of the offline estimate as the original prints it: JSON and Markdown.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lib/engines/mnn/offline/offline.h"

namespace kv::mnn::offline {
namespace {

constexpr std::string_view kCodec = "fp16_gear_predictive_zstd";

// Returns counts in the order in which predictors compete; those of the legacy mode do not compete.
std::vector<std::pair<std::string_view, uint64_t>> ListCounts(const Options& options,
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

Value CountsToObject(const auto& counts) {
  Value::Object object;
  for (const auto& [name, count] : counts) object.emplace_back(name, count);
  return object;
}

// Returns a boolean as Python prints it.
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

auto OptionGetter(auto member) {
  return [member](const Document& of) { return of.options.*member; };
}
auto ResultGetter(auto member) {
  return [member](const Document& of) { return of.result.*member; };
}
auto NameGetter(auto member) {
  return [member](const Document& of) { return Name(of.options.*member); };
}

const Fields<Document>& SelectionFields() {
  const auto list = [](const std::set<int64_t>& layers) {
    return std::vector(layers.begin(), layers.end());
  };
  static const Fields<Document> fields = {
      {"schema_version", "Version of the engine's document", [](const Document&) { return 3; },
       OneOf(3)},
      {"dump_dir", "The folder of dumps as it was given", &Document::dump_dir},
      {"stage", "Stages that were counted: both, prefill or decode", NameGetter(&Options::stage)},
      {"scope", "How layers were selected: front_n, layer_range or layer_ids",
       NameGetter(&Options::scope)},
      {"front_n", "Number of first layers, under scope front_n", OptionGetter(&Options::front_n)},
      {"layer_start", "First layer, under scope layer_range", OptionGetter(&Options::layer_start)},
      {"layer_end", "Last layer, under scope layer_range; -1: the last of the model",
       OptionGetter(&Options::layer_end)},
      {"layer_ids", "The layers asked for, under scope layer_ids",
       [list](const Document& of) { return list(of.options.layer_ids); }},
      {"selected_layers", "Numbers of the layers that were counted",
       [list](const Document& of) { return list(of.result.layers); }},
      {"selected_entries", "Number of dumps of a layer that were selected",
       ResultGetter(&Result::entries)},
      {"selected_dumps", "Number of runs that the selected entries come from",
       ResultGetter(&Result::dumps)}};
  return fields;
}

const Fields<Document>& CodingFields() {
  const auto names = [](Stream stream) {
    return [stream](const Document& of) {
      std::vector<std::string_view> names;
      for (const Predictor one : of.options.predictors[stream]) names.push_back(Name(one));
      return names;
    };
  };
  static const Fields<Document> fields = {
      {"entry_mode",
       "How entries are cut before they are coded: per_meta, aggregate, chunked or chunked_grouped",
       NameGetter(&Options::entry_mode)},
      {"online_chunk_seq", "Tokens of a chunk; 0: nothing is cut",
       OptionGetter(&Options::chunk_tokens)},
      {"online_framing_bytes", "Bytes that are counted for the frame of each chunk",
       OptionGetter(&Options::framing_bytes)},
      {"aggregate_by_stage", "Whether prefill and decode are joined separately",
       OptionGetter(&Options::aggregate_by_stage)},
      {"aggregate_groups", "Number of groups that entries were joined into",
       ResultGetter(&Result::groups)},
      {"online_chunks", "Number of chunks that entries were cut into",
       ResultGetter(&Result::chunks)},
      {"codec", "Name of the codec that is simulated", [](const Document&) { return kCodec; }},
      {"codec_mode",
       "How predictors are chosen: the legacy fixed ones, or the best of several for each block",
       NameGetter(&Options::codec)},
      {"bitshuffle", "Whether bits are shuffled before zstd", OptionGetter(&Options::bitshuffle)},
      {"adaptive_block_seq", "Tokens of a block for which a predictor is chosen",
       OptionGetter(&Options::block_tokens)},
      {"k_hi_predictors", "Names of the predictors that compete for the high bytes of K",
       names(kKHi)},
      {"k_lo_predictors", "Names of the predictors that compete for the low bytes of K",
       names(kKLo)},
      {"v_hi_predictors", "Names of the predictors that compete for the high bytes of V",
       names(kVHi)},
      {"v_lo_predictors", "Names of the predictors that compete for the low bytes of V",
       names(kVLo)},
      {"zstd_level", "Level of zstd", OptionGetter(&Options::zstd_level)}};
  return fields;
}

const Fields<Document>& SizeFields() {
  const auto bytes = [](Sizes Result::*part, uint64_t Sizes::*member) {
    return [part, member](const Document& of) { return of.result.*part.*member; };
  };
  // Returns a ratio of K or V, or of both for nullptr.
  const auto ratio = [](Sizes Result::*part) {
    return [part](const Document& of) -> std::optional<double> {
      const Sizes sizes = part == nullptr ? of.result.total() : of.result.*part;
      if (of.zero_is_null && sizes.ratio() == 0) return std::nullopt;
      return sizes.ratio();
    };
  };
  static const Fields<Document> fields = {
      {"k_raw_bytes", "Bytes of K as f16", bytes(&Result::k, &Sizes::raw)},
      {"k_compressed_bytes", "Bytes that K would take when coded, frames included",
       bytes(&Result::k, &Sizes::compressed)},
      {"v_raw_bytes", "Bytes of V as f16", bytes(&Result::v, &Sizes::raw)},
      {"v_compressed_bytes", "Bytes that V would take when coded, frames included",
       bytes(&Result::v, &Sizes::compressed)},
      {"k_chunk_meta_bytes", "Bytes of coded K that describe its chunks",
       bytes(&Result::k, &Sizes::chunk_meta)},
      {"v_chunk_meta_bytes", "Bytes of coded V that describe its chunks",
       bytes(&Result::v, &Sizes::chunk_meta)},
      {"raw_bytes", "Bytes of K and V as f16",
       [](const Document& of) { return of.result.total().raw; }},
      {"compressed_bytes", "Bytes that K and V would take when coded",
       [](const Document& of) { return of.result.total().compressed; }},
      {"k_lossless_ratio", "k_raw_bytes / k_compressed_bytes", ratio(&Result::k), AtLeast(0)},
      {"v_lossless_ratio", "v_raw_bytes / v_compressed_bytes", ratio(&Result::v), AtLeast(0)},
      {"lossless_ratio",
       "raw_bytes / compressed_bytes; null if nothing was coded (0 in the engine's document)",
       ratio(nullptr), AtLeast(0)},
      {"weighted_lossless_ratio", "lossless_ratio under the engine's second name for it",
       ratio(nullptr), AtLeast(0)}};
  return fields;
}

const Fields<Document>& CountFields() {
  static const FieldOptions counts = {
      .schema = Value::Object{
          {"type", "object"},
          {"additionalProperties", Value::Object{{"type", "integer"}, {"minimum", 0}}}}};
  const auto mode_counts = [](Stream stream) {
    return [stream](const Document& of) {
      return CountsToObject(ListCounts(of.options, of.result, stream));
    };
  };
  static const Fields<Document> fields = {
      {"k_hi_mode_counts",
       "Number of blocks of the high bytes of K that each predictor won, by its name",
       mode_counts(kKHi), counts},
      {"k_lo_mode_counts",
       "Number of blocks of the low bytes of K that each predictor won, by its name",
       mode_counts(kKLo), counts},
      {"v_hi_mode_counts",
       "Number of blocks of the high bytes of V that each predictor won, by its name",
       mode_counts(kVHi), counts},
      {"v_lo_mode_counts",
       "Number of blocks of the low bytes of V that each predictor won, by its name",
       mode_counts(kVLo), counts},
      {"scanned_entries", "Number of entries that were looked at", ResultGetter(&Result::scanned)},
      {"converted_fp32_entries", "Number of entries that were rounded from f32 to f16",
       ResultGetter(&Result::converted)},
      {"skipped_entries", "Number of entries that were left out", ResultGetter(&Result::skipped)},
      {"skip_reasons", "Number of entries that were left out, by reason",
       [](const Document& of) { return CountsToObject(of.result.skip_reasons); }, counts}};
  return fields;
}

}  // namespace

const Fields<Document>& DocumentFields() {
  using Table = Fields<Document>;
  static const Table fields = {Table::Inline(SelectionFields()), Table::Inline(CodingFields()),
                               Table::Inline(SizeFields()), Table::Inline(CountFields())};
  return fields;
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
    item(StreamTitle(stream) + " mode counts", PythonDict(ListCounts(options, result, stream)));
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
