// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "lib/engines/mnn/h2o/replay.h"

namespace kv::mnn::h2o {

// The attention figures of kvtool.h2o/1. Figures over no row are null.

// Under "attention": rows as they come; under "evicting": those that lose something.
nlohmann::ordered_json QualityJson(const AttentionSummary& summary);
// "evicting" of a run, with the layers that it is over; null without quality.
nlohmann::ordered_json EvictingJson(const ReplayRun& run);
nlohmann::ordered_json HeadsJson(const eviction::LayerQuality& quality);
// Means over tenths of the decode steps: whether the loss grows.
nlohmann::ordered_json DecilesJson(std::span<const eviction::LayerQuality> layers,
                                   const eviction::MeasuredRows& measured);

}  // namespace kv::mnn::h2o
