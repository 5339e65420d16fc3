// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/parallel.h"
#include "lib/h2o/layer_attention.h"
#include "lib/h2o/timeline.h"

namespace kv::h2o {

// What a rule for choosing tokens needs from a trace.
struct PolicyInfo {
  std::string_view name;
  std::string_view summary;
  bool needs_rows;  // attention rows; else lengths, positions or keys suffice
};
std::span<const PolicyInfo> Policies();
const PolicyInfo* FindPolicy(std::string_view name);

enum class Granularity { kLayer, kKvHead };

struct PolicyOptions {
  Config config;  // of rule "block"; sanitised
  WeightRule weights = WeightRule::kSoftmax;
  Granularity granularity = Granularity::kLayer;  // of rule "block"
  uint64_t seed = 0;                              // of "random"
};

// Where a layer stands in the model, for rules that spread a budget over layers.
struct LayerPlace {
  uint32_t index = 0, count = 1;  // among the layers that evict
  uint64_t prompt = 0;            // position of the first decode step
};

// Replays one rule over one layer, held to a schedule: at each eviction it keeps as many tokens as
// the schedule says (pyramid: as many over all layers). Deterministic for any number of threads.
LayerPlan PlanLayer(const PolicyInfo& policy, const PolicyOptions& options,
                    const LayerAttention& attention, const LayerPlace& place,
                    const LayerSchedule& schedule, ThreadPool& pool);

// The `keep` tokens with the highest scores among the first scores.size() - last, and the `last`
// ones, which are always kept. Equal scores keep the lower index; NaN is dropped first.
KeepPlan TopTokens(std::span<const double> scores, uint64_t keep, uint64_t last);

}  // namespace kv::h2o
