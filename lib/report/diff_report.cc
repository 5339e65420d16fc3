// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/diff_report.h"

#include <fmt/format.h>

namespace kv {

using Json = nlohmann::ordered_json;

std::string BitsText(DType dtype, uint64_t bits) {
  return fmt::format("{:#0{}x}", bits, 2 + 2 * Info(dtype).block_bytes);
}

Json FirstJson(const TensorDiff& diff) {
  const DifferingValue& at = *diff.first;
  Json json = {{"token", at.token}};
  if (diff.heads_known) json["head"] = at.head;
  json[diff.heads_known ? "dim" : "channel"] = at.dim;
  json["a"] = at.a;
  json["b"] = at.b;
  if (!IsBlockQuantised(diff.a_dtype)) json["a_bits"] = BitsText(diff.a_dtype, at.a_bits);
  if (!IsBlockQuantised(diff.b_dtype)) json["b_bits"] = BitsText(diff.b_dtype, at.b_bits);
  return json;
}

Json TensorJson(const TensorDiff& diff) {
  Json json = {{"a_dtype", Name(diff.a_dtype)},
               {"b_dtype", Name(diff.b_dtype)},
               {"values", diff.values},
               {"different_count", diff.different},
               {"beyond_tolerance_count", diff.beyond},
               {"not_finite_count", diff.not_finite},
               {"max_abs", diff.largest_abs()},
               {"mean_abs", diff.mean_abs()},
               {"max_rel", diff.largest_rel()}};
  json["max_ulp"] = diff.has_ulp() ? Json(diff.max_ulp) : Json();
  if (diff.first) json["first"] = FirstJson(diff);
  return json;
}

FirstDifference FirstOf(const SnapshotDiff& diff) {
  FirstDifference first;
  for (const LayerDiff& layer : diff.layers) {
    for (const auto& [part, name] : {std::pair{&layer.k, 'K'}, {&layer.v, 'V'}}) {
      if (!*part || !(*part)->first) continue;
      if (first.diff == nullptr || (!first.diff->first->is_beyond && (*part)->first->is_beyond)) {
        first = {&**part, layer.layer, name};
      }
    }
  }
  return first;
}

Json LayersJson(const SnapshotDiff& diff) {
  Json layers = Json::array();
  for (const LayerDiff& layer : diff.layers) {
    Json json = {{"layer", layer.layer}};
    if (layer.k) json["k"] = TensorJson(*layer.k);
    if (layer.v) json["v"] = TensorJson(*layer.v);
    layers.push_back(std::move(json));
  }
  return layers;
}

}  // namespace kv
