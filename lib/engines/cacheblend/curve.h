// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/engines/cacheblend/replay.h"

namespace kv::blend {

// The scored tokens [0, scored) in the order in which a baseline recomputes them.
std::vector<uint32_t> RandomOrder(uint64_t scored, uint64_t seed);
// First tokens of all chunks, then their second ones, and so on.
std::vector<uint32_t> FirstOfChunkOrder(const std::vector<Chunk>& chunks, uint64_t scored);

// One byte per token: 1 for the first k of the order and for all from `scored` on.
std::vector<uint8_t> Recomputed(std::span<const uint32_t> order, uint64_t k, uint64_t scored,
                                uint64_t tokens);

// What is left of every blended layer's deviation, without attention. `rankings` has one entry per
// layer, `first_blended` is the place of the first layer that blending touches.
std::vector<CurvePoint> MeasureCurve(const std::vector<LayerDeviation>& layers,
                                     const std::vector<Ranking>& rankings,
                                     const std::vector<Chunk>& chunks, const Request& request,
                                     size_t check_place, size_t first_blended, uint64_t tokens,
                                     ThreadPool& pool);
// The means over layers; where a layer has no attention figures the mean is of those that have.
CurveLayer MeanOf(const std::vector<CurveLayer>& layers);

}  // namespace kv::blend
