// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/core/weights/weights.h"
#include "tests/support/memory_source.h"

namespace kv::test {

// Small f32 weights whose values encode their place: layers x (prefixes x 3) blocks of [dim][factor
// x dim], [dim][dim], [dim][dim], all with bias.
inline CompressorWeights SampleWeights(uint32_t layers = 2, uint32_t prefixes = 4, uint32_t dim = 4,
                                       uint32_t factor = 2) {
  CompressorWeights weights;
  weights.dtype = DType::kF32;
  weights.header = {layers, 0, dim, dim * factor, factor, 2, prefixes * kSlotsPerMlp};
  weights.slots = {0, 3, 6};
  for (uint32_t i = 0; i < prefixes; ++i) weights.prefixes.emplace_back(kMlpPrefixes[i]);
  float next = -3;
  const auto fill = [&](std::vector<uint64_t> shape) {
    uint64_t count = 1;
    for (const uint64_t extent : shape) count *= extent;
    ByteWriter values;
    for (uint64_t i = 0; i < count; ++i) values.Write(next += 0.125f);
    const auto spool = FileSource::FromBytes(values.Release(), "sample");
    weights.spools.push_back(spool);
    return ContiguousView(DType::kF32, std::move(shape), spool->bytes().data());
  };
  for (uint32_t i = 0; i < layers * weights.header.blocks_per_layer; ++i) {
    LinearBlock block;
    block.weight = fill({dim, i % kSlotsPerMlp == 0 ? dim * factor : dim});
    block.bias = fill({dim});
    weights.blocks.push_back(std::move(block));
  }
  return weights;
}

}  // namespace kv::test
