// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "lib/core/base/half.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::test {

// A cache whose layers have K and V from the same activations, as in a model, plus noise.
struct LayeredCache {
  static constexpr uint32_t kHeads = 2, kHeadDim = 16, kChannels = kHeads * kHeadDim;

  // All K come first, then all V, as in a state of llama.cpp. Caches that differ only in `drift`
  // have activations that differ by that amount, as from another arithmetic.
  LayeredCache(uint32_t layers, uint64_t tokens, float noise = 0.02f, float drift = 0) {
    constexpr size_t kWidth = 12;
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> x(tokens * kWidth);
    for (float& value : x) value = normal(random);
    std::mt19937 other(6);
    for (float& value : x) value += drift * normal(other);
    Bytes bytes;
    for (uint32_t i = 0; i < 2 * layers; ++i) {
      std::vector<float> weights(kWidth * kChannels);
      for (float& weight : weights) weight = normal(random) / 4;
      for (uint64_t t = 0; t < tokens; ++t) {
        for (uint32_t c = 0; c < kChannels; ++c) {
          float value = noise * normal(random);
          for (size_t j = 0; j < kWidth; ++j)
            value += x[t * kWidth + j] * weights[j * kChannels + c];
          const uint16_t half = F32ToF16(value);
          bytes.push_back(static_cast<std::byte>(half));
          bytes.push_back(static_cast<std::byte>(half >> 8));
        }
      }
    }
    source.files.push_back({"", FileSource::FromBytes(std::move(bytes), "cache")});
    const std::byte* data = source.files[0].data->bytes().data();
    const auto tensor = [&](uint32_t place) {
      return ContiguousTensor(data + uint64_t{place} * tokens * kChannels * 2, DType::kF16, tokens,
                              kHeads, kHeadDim, Order::kTokenHeadDim);
    };
    snapshot.source = source;
    snapshot.format = "test";
    for (uint32_t layer = 0; layer < layers; ++layer) {
      snapshot.layers.push_back({layer, {}, {}, tensor(layer), tensor(layers + layer)});
    }
  }

  Source source;
  Snapshot snapshot;
};

}  // namespace kv::test
