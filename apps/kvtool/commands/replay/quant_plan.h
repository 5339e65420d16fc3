// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/fields/fields.h"
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
QuantPlan PlanOf(const quantisation::ReplayRequest& request,
                 const quantisation::ReplayResult& result, const std::vector<size_t>& choice);
const Fields<QuantPlan>& QuantPlanFields();

// The types that a flag names, each once.
std::vector<const quant::CacheType*> ParseTypes(const std::vector<std::string>& names,
                                                std::string_view flag);
// Reads a plan whose types and pairs take the place of those of flags in the request. Throws what
// ReadQuantPlan does, and kInconsistent for a layer that the snapshot does not have.
QuantPlan TakePlan(const std::string& path, const Snapshot& snapshot,
                   quantisation::ReplayRequest& request);
// The pair that a plan names for each layer that was replayed.
std::vector<size_t> ChoiceOf(const QuantPlan& plan, const quantisation::ReplayRequest& request,
                             const quantisation::ReplayResult& result);

}  // namespace kv
