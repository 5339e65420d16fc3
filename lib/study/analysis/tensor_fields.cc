// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/tensor_fields.h"

#include <nlohmann/json.hpp>

#include "lib/core/base/hash.h"

namespace kv::analysis {

const Fields<Coded>& CodedFields() {
  static const Fields<Coded> fields = {
      {"raw_bytes", "Bytes before coding", &Coded::raw_bytes},
      {"coded_bytes", "Bytes after coding, headers included", &Coded::coded_bytes},
      {"ratio", "raw_bytes / coded_bytes; 1 where nothing was coded", &Coded::ratio, {.above = 0}},
      {"removed_fraction",
       "Share of the raw bytes that coding removes: 1 - coded_bytes / raw_bytes",
       &Coded::removed,
       {.most = 1}}};
  return fields;
}

namespace {

constexpr const char* kTaggedHashPattern = "^xxh3:[0-9a-f]{16}$";

const Fields<Measured>& MeasuredFields() {
  static const Fields<Measured> fields = {
      Fields<Measured>::Inline([](const Measured& of) -> const Coded& { return of; },
                               CodedFields()),
      {"chunks", "Number of chunks that the tensor was cut into, as compress cuts it",
       &Measured::chunks},
      {"decodes", "Whether all chunks decode to the same bytes again, by hash", &Measured::decodes},
      {"xxh3",
       "XXH3 hash (64 bits) of the tensor's bytes in the order of the chunks",
       [](const Measured& of) { return HashText(of.raw_hash); },
       {.pattern = kTaggedHashPattern}},
      {"codecs", "Number of chunks that each codec coded, by its name",
       [](const Measured& of) {
         std::map<std::string, uint64_t> chunks;
         for (const auto& [codec, count] : of.codecs) chunks.emplace(Name(codec), count);
         return chunks;
       }},
      {"planes",
       "Size of each byte plane of the values, least significant first; empty for types without "
       "planes",
       &Measured::planes, CodedFields()}};
  return fields;
}

const Fields<EntropyModel>& EntropyModelFields() {
  static const Fields<EntropyModel> fields = {
      {"name", "Name of the model", &EntropyModel::name},
      {"bits",
       "Bits per value that a coder needs which knows the context that the model sees",
       &EntropyModel::bits,
       {.least = 0}},
      {"table_bits",
       "Bits per value that describing the model's own numbers costs; 0 for adaptive models",
       &EntropyModel::table_bits,
       {.least = 0}}};
  return fields;
}

const Fields<Structure>& StructureFields() {
  static const Fields<Structure> fields = {
      {"zero_rows", "Number of tokens of which every byte is zero", &Structure::zero_rows},
      {"trailing_zero_rows", "Number of those at the end, which are padding",
       &Structure::trailing_zero_rows},
      {"repeated_rows", "Number of rows equal, by hash, to an earlier row that is not zero",
       &Structure::repeated_rows},
      {"constant_channels", "Number of channels that are equal in all tokens",
       &Structure::constant_channels},
      {"zero_channels", "Number of those that are zero", &Structure::zero_channels}};
  return fields;
}

const Fields<Narrowness>& NarrownessFields() {
  static const Fields<Narrowness> fields = {
      {"f16_values", "Number of values that are exact in f16", &Narrowness::exact_f16},
      {"bf16_values", "Number of values that are exact in bf16", &Narrowness::exact_bf16},
      {"is_f16", "Whether every value is exact in f16", &Narrowness::is_f16},
      {"is_bf16", "Whether every value is exact in bf16", &Narrowness::is_bf16}};
  return fields;
}

struct Narrowed {
  const Measured& measured;
  DType dtype;
};

std::optional<Narrowed> NarrowedOf(const TensorAnalysis& tensor) {
  if (!tensor.narrow) return std::nullopt;
  return Narrowed{*tensor.narrow, *tensor.narrow_dtype};
}

template <typename T>
const std::vector<T>* UnlessEmpty(const std::vector<T>& list) {
  return list.empty() ? nullptr : &list;
}

}  // namespace

const Fields<TensorAnalysis>& TensorAnalysisFields() {
  using Tensor = TensorAnalysis;
  static const Fields<EntropyModel> bound = {
      {"bits_per_value",
       "Bits per value under the cheapest model, its table included",
       &EntropyModel::total_bits,
       {.least = 0}},
      {"model", "Name of the cheapest model", &EntropyModel::name}};
  static const Fields<Unrotated> unrotated = {
      {"pairs",
       "Which dimensions the rotation pairs: neighbours (2i, 2i+1), or halves (i, i + dims/2)",
       [](const Unrotated& of) { return of.interleaved ? "adjacent" : "halves"; },
       {.choices = {"adjacent", "halves"}}},
      {"models", "Every entropy model of the values without the rotation", &Unrotated::models,
       EntropyModelFields()}};
  static const Fields<Narrowed> narrow = {
      Fields<Narrowed>::Inline([](const Narrowed& of) -> const Measured& { return of.measured; },
                               MeasuredFields()),
      {"dtype",
       "The narrower type in which the values were coded",
       [](const Narrowed& of) { return Name(of.dtype); },
       {.choices = {"f16", "bf16"}}}};
  static const Value entropy = Value::Object{{"type", "number"}, {"minimum", 0}, {"maximum", 8}};
  static const Fields<Tensor> fields = {
      {"dtype", "Element type as stored", [](const Tensor& of) { return Name(of.dtype); }},
      {"tokens", "Number of tokens", &Tensor::tokens},
      {"kv_heads", "Number of kv heads; null: the heads are not known",
       [](const Tensor& of) { return of.heads_known ? std::optional(of.heads) : std::nullopt; }},
      {"head_dim", "Number of values of a head; null: the heads are not known",
       [](const Tensor& of) { return of.heads_known ? std::optional(of.head_dim) : std::nullopt; }},
      {"channels",
       "Number of storage units of a row: heads times values of a head, or blocks of a block type",
       [](const Tensor& of) { return of.structure.channels; }},
      {"measured", "Sizes under MNN's codec (level compat)", &Tensor::measured, MeasuredFields()},
      {"own", "Sizes under kvtool's codecs at the level asked for; null at level compat",
       &Tensor::own, MeasuredFields()},
      {"bits_per_value",
       "Bits per value that the better of both codecs reaches",
       &Tensor::reached_bits,
       {.least = 0}},
      {"bound", "The least that an entropy model needs", &Tensor::bound, bound},
      {"models", "Every entropy model of 16-bit floats; empty for other types", &Tensor::models,
       EntropyModelFields()},
      {"unrotated",
       "The entropy models of K after its rotation is undone and its values are rounded again, for "
       "each way to pair dimensions",
       [](const Tensor& of) { return UnlessEmpty(of.unrotated); },
       unrotated,
       {.absent = true}},
      {"autoregressive_gain_bits",
       "Bits per value that the best linear prediction from the token before would save if values "
       "were Gaussian; null for types without models",
       [](const Tensor& of) {
         return of.models.empty() ? std::nullopt : std::optional(of.autoregressive_gain_bits);
       }},
      {"cross_channel_gain_bits",
       "Bits per value that linear prediction from the channels of the same head would save if "
       "values were Gaussian; null: not measured",
       &Tensor::cross_channel_gain_bits},
      {"plane_entropy_bits",
       "Entropy of each byte plane in bits per byte, least significant first",
       [](const Tensor& of) { return of.stats.plane_entropy_bits; },
       {.schema = Value::Object{{"type", "array"}, {"items", entropy}}}},
      {"values", "Summary of the values",
       [](const Tensor& of) -> const ValueSummary& { return of.stats; }, ValueSummaryFields()},
      {"structure", "Rows and channels that repeat or are zero", &Tensor::structure,
       StructureFields()},
      {"exact",
       "Of f32 values: how many a type of half the size represents exactly",
       &Tensor::narrowness,
       NarrownessFields(),
       {.absent = true}},
      {"narrow",
       "Sizes when f32 values that are exact in a type of half the size are coded in that type",
       NarrowedOf,
       narrow,
       {.absent = true}},
      {"heads",
       "Sizes of each head coded on its own; only with --per-head",
       [](const Tensor& of) { return UnlessEmpty(of.heads_coded); },
       CodedFields(),
       {.absent = true}}};
  return fields;
}

std::string TensorJsonText(const TensorAnalysis& tensor) {
  return ToJson(TensorAnalysisFields().Object(tensor))
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kv::analysis
