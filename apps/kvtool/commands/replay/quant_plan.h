// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Plans of types by layer: reading, making and applying kvtool.quant-plan/1.
#pragma once

#include <string>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/study/quantisation/replay.h"

namespace kv {

// Types of K and V by layer: kvtool.quant-plan/1. Layers that are not named do not change.
struct QuantPlan {
  struct Layer {
    uint32_t layer = 0;
    std::string k, v;
  };
  std::vector<Layer> layers;  // ascending
};

// Throws kBadText, kBadVersion, kBadField.
QuantPlan ReadQuantPlan(const std::string& path);
// Returns the plan of a choice of pairs for the measured layers.
QuantPlan PlanOf(const quantisation::ReplayRequest& request,
                 const quantisation::ReplayResult& result, const std::vector<size_t>& choice);
const Fields<QuantPlan>& QuantPlanFields();

// Returns the types that a flag names, each once.
std::vector<const quant::CacheType*> ParseTypes(const std::vector<std::string>& names,
                                                std::string_view flag);
// Reads a plan whose types and pairs replace those of flags in the request. Throws what
// ReadQuantPlan does, and kInconsistent for a layer that the snapshot does not have.
QuantPlan TakePlan(const std::string& path, const Snapshot& snapshot,
                   quantisation::ReplayRequest& request);
// Returns the pair that a plan names for each replayed layer.
std::vector<size_t> ChoiceOf(const QuantPlan& plan, const quantisation::ReplayRequest& request,
                             const quantisation::ReplayResult& result);

}  // namespace kv
