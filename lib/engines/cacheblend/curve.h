// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/engines/cacheblend/replay.h"

namespace kv::blend {

// The orders in which baselines recompute the scored tokens [0, scored): at random, or the first
// tokens of all chunks, then their second ones, and so on.
std::vector<uint32_t> RandomOrder(uint64_t scored, uint64_t seed);
std::vector<uint32_t> FirstOfChunkOrder(const std::vector<Chunk>& chunks, uint64_t scored);

// Returns one byte per token: 1 for the first k of the order and for all tokens from `scored` on.
std::vector<uint8_t> Recomputed(std::span<const uint32_t> order, uint64_t k, uint64_t scored,
                                uint64_t tokens);

// Returns the shares of a layer's deviation in tokens that are not recomputed (one byte each).
Remaining RemainingOf(const LayerDeviation& layer, const std::vector<uint8_t>& recomputed);

// Measures, for every ratio asked for, how much of each blended layer's deviation is left;
// attention figures are left out. `rankings` has one entry per layer. `first_blended` is the place
// of the first layer that blending touches.
std::vector<CurvePoint> MeasureCurve(const std::vector<LayerDeviation>& layers,
                                     const std::vector<Ranking>& rankings,
                                     const std::vector<Chunk>& chunks, const Request& request,
                                     size_t check_place, size_t first_blended, uint64_t tokens,
                                     ThreadPool& pool);
// Averages over layers; attention figures are averaged over the layers that have them.
CurveLayer MeanOf(const std::vector<CurveLayer>& layers);

}  // namespace kv::blend
