// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "lib/engines/mnn/h2o/replay.h"

namespace kv::mnn::h2o {

// The attention figures of kvtool.h2o/1. A figure over no rows is null.

// Returns a summary as it stands under "attention" (all rows) and "evicting" (rows that lose
// something).
nlohmann::ordered_json QualityJson(const AttentionSummary& summary);
// Returns "predicted_kl" of a run; null where nats cannot be predicted.
nlohmann::ordered_json PredictedKlJson(const ReplayRun& run);
// Returns "evicting" of a run, with the layers that it covers; null if quality was not measured.
nlohmann::ordered_json EvictingJson(const ReplayRun& run);
nlohmann::ordered_json HeadsJson(const eviction::LayerQuality& quality);
// Returns means over tenths of the decode steps, which show whether the loss grows.
nlohmann::ordered_json DecilesJson(std::span<const eviction::LayerQuality> layers,
                                   const eviction::MeasuredRows& measured);

}  // namespace kv::mnn::h2o
