// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Plans of types by layer (kvtool.quant-plan/1): reading, choosing and applying them, and their
// cost.
#pragma once  // implemented by quant_plan.cc, quant_advice.cc

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "lib/core/snapshot/snapshot.h"
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

// Returns the plan of a choice of pairs for the measured layers.
QuantPlan MakeQuantPlan(const quantisation::ReplayRequest& request,
                        const quantisation::ReplayResult& result,
                        const std::vector<size_t>& choice);
const Fields<QuantPlan>& QuantPlanFields();

std::vector<std::string> TypeWords();  // names of all types, for completion
// Returns the types that a flag names, each once.
std::vector<const quant::CacheType*> ParseTypes(const std::vector<std::string>& names,
                                                std::string_view flag);
// Reads a plan whose types and pairs replace those of flags in the request. Throws what
// ReadQuantPlan does, and kInconsistent for a layer that the snapshot does not have.
QuantPlan TakePlan(const std::string& path, const Snapshot& snapshot,
                   quantisation::ReplayRequest& request);
// Returns the pair that a plan names for each replayed layer.
std::vector<size_t> FindChoice(const QuantPlan& plan, const quantisation::ReplayRequest& request,
                               const quantisation::ReplayResult& result);

// Prints one line: size and loss of all layers together.
void PrintOutcome(Console& console, std::string_view what, const quantisation::Outcome& outcome,
                  const quantisation::ReplayResult& result);
// Returns warnings that a reader of the figures needs.
std::vector<std::string> QuantWarnings(const Snapshot& snapshot,
                                       const quantisation::ReplayRequest& request,
                                       const quantisation::ReplayResult& result);

// Limits on the types of all layers together.
struct QuantLimits {
  std::optional<double> max_kl;  // nats, calibrated
  uint64_t bytes = 0;            // per token in all layers; 0: no limit
};

// Chooses a pair of types for each layer.
quantisation::SearchResult SearchTypes(const QuantLimits& asked,
                                       const quantisation::ReplayRequest& request,
                                       const quantisation::ReplayResult& result);
// The part "advice" of the document.
struct QuantAdvice {
  const QuantLimits& asked;
  const quantisation::ReplayRequest& request;
  const quantisation::ReplayResult& result;
  const quantisation::SearchResult& found;
};
const Fields<QuantAdvice>& QuantAdviceFields();
void PrintAdvice(Console& console, const quantisation::ReplayRequest& request,
                 const quantisation::ReplayResult& result, const quantisation::SearchResult& found);

}  // namespace kv
