// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/study/quantisation/replay.h"

namespace kv {

// Types of K and V by layer: kvtool.quant-plan/1. Layers that are not named stay as they are.
struct QuantPlan {
  struct Layer {
    uint32_t layer = 0;
    std::string k, v;
  };
  std::vector<Layer> layers;  // ascending
};

// Throws kBadText, kBadVersion, kBadField.
QuantPlan ReadQuantPlan(const std::string& path);
// What a choice of pairs says of the layers that a replay measured.
nlohmann::ordered_json QuantPlanJson(const quantisation::ReplayRequest& request,
                                     const quantisation::ReplayResult& result,
                                     const std::vector<size_t>& choice);

}  // namespace kv
