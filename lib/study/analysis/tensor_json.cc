// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/tensor_json.h"

#include <nlohmann/json.hpp>

#include "lib/core/base/hash.h"

namespace kv::analysis {

using Json = nlohmann::ordered_json;

Json CodedJson(const Coded& coded) {
  const double removed = coded.raw_bytes == 0 ? 0
                                              : 1 - static_cast<double>(coded.coded_bytes) /
                                                        static_cast<double>(coded.raw_bytes);
  return {{"raw_bytes", coded.raw_bytes},
          {"coded_bytes", coded.coded_bytes},
          {"ratio", coded.ratio()},
          {"removed_fraction", removed}};
}

namespace {

Json MeasuredJson(const Measured& measured) {
  Json json = CodedJson(measured);
  json["chunks"] = measured.chunks;
  json["decodes"] = measured.decodes();
  json["xxh3"] = HashText(measured.raw_hash);
  json["codecs"] = Json::object();
  for (const auto& [codec, chunks] : measured.codecs)
    json["codecs"][std::string(Name(codec))] = chunks;
  json["planes"] = Json::array();
  for (const Coded& plane : measured.planes) json["planes"].push_back(CodedJson(plane));
  return json;
}

Json ModelsJson(const std::vector<EntropyModel>& models) {
  Json json = Json::array();
  for (const EntropyModel& model : models) {
    json.push_back({{"name", model.name}, {"bits", model.bits}, {"table_bits", model.table_bits}});
  }
  return json;
}

Json StructureJson(const Structure& structure) {
  return {{"zero_rows", structure.zero_rows},
          {"trailing_zero_rows", structure.trailing_zero_rows},
          {"repeated_rows", structure.repeated_rows},
          {"constant_channels", structure.constant_channels},
          {"zero_channels", structure.zero_channels}};
}

}  // namespace

Json TensorJson(const TensorAnalysis& tensor) {
  Json json = {{"dtype", Name(tensor.dtype)}, {"tokens", tensor.tokens}};
  json["kv_heads"] = tensor.heads_known ? Json(tensor.heads) : Json();
  json["head_dim"] = tensor.heads_known ? Json(tensor.head_dim) : Json();
  json["channels"] = tensor.structure.channels;
  json["measured"] = MeasuredJson(tensor.measured);
  json["own"] = tensor.own ? MeasuredJson(*tensor.own) : Json();
  json["bits_per_value"] = tensor.reached_bits();
  const EntropyModel bound = tensor.bound();
  json["bound"] = {{"bits_per_value", bound.total_bits()}, {"model", bound.name}};
  json["models"] = ModelsJson(tensor.models);
  if (!tensor.unrotated.empty()) {
    json["unrotated"] = Json::array();
    for (const Unrotated& turned : tensor.unrotated) {
      json["unrotated"].push_back({{"pairs", turned.interleaved ? "adjacent" : "halves"},
                                   {"models", ModelsJson(turned.models)}});
    }
  }
  json["autoregressive_gain_bits"] =
      tensor.models.empty() ? Json() : Json(tensor.autoregressive_gain_bits);
  json["cross_channel_gain_bits"] =
      tensor.cross_channel_gain_bits ? Json(*tensor.cross_channel_gain_bits) : Json();
  json["plane_entropy_bits"] = tensor.stats.plane_entropy_bits;
  json["values"] = SummaryJson(tensor.stats);
  json["structure"] = StructureJson(tensor.structure);
  if (tensor.narrowness) {
    json["exact"] = {{"f16_values", tensor.narrowness->exact_f16},
                     {"bf16_values", tensor.narrowness->exact_bf16},
                     {"is_f16", tensor.narrowness->is_f16()},
                     {"is_bf16", tensor.narrowness->is_bf16()}};
  }
  if (tensor.narrow) {
    json["narrow"] = MeasuredJson(*tensor.narrow);
    json["narrow"]["dtype"] = Name(*tensor.narrow_dtype);
  }
  if (!tensor.heads_coded.empty()) {
    json["heads"] = Json::array();
    for (const Coded& head : tensor.heads_coded) json["heads"].push_back(CodedJson(head));
  }
  return json;
}

std::string TensorJsonText(const TensorAnalysis& tensor) {
  return TensorJson(tensor).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kv::analysis
