// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/snapshot/layout.h"
#include "lib/study/analysis/analysis.h"

namespace kv::analysis::cross_channel_test {
namespace {

// Draws heads of `dim` channels; each channel d is `share` of channel 0 plus noise.
Bytes Correlated(uint64_t tokens, uint32_t heads, uint32_t dim, float share) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  Bytes rows(tokens * heads * dim * 4);
  size_t at = 0;
  for (uint64_t row = 0; row < tokens * heads; ++row) {
    const float first = normal(random);
    for (uint32_t d = 0; d < dim; ++d, at += 4) {
      const float noise = normal(random);
      StoreLE(&rows[at], d == 0 ? first : 3 + share * first + std::sqrt(1 - share * share) * noise);
    }
  }
  return rows;
}

}  // namespace

TEST_CASE("channels of a head that know each other save what theory says") {
  const Bytes rows = Correlated(6000, 2, 2, 0.8f);
  const auto gain = CrossChannelGain(
      ContiguousTensor(rows.data(), DType::kF32, 6000, 2, 2, Order::kTokenHeadDim));
  // One of the two channels costs -log2(1 - 0.64) / 2 bits less.
  REQUIRE(gain);
  CHECK(*gain == Approx(-std::log2(1 - 0.64) / 4).margin(0.02));

  const Bytes noise = Correlated(6000, 2, 2, 0);
  CHECK(*CrossChannelGain(
            ContiguousTensor(noise.data(), DType::kF32, 6000, 2, 2, Order::kTokenHeadDim)) < 0.01);
}

TEST_CASE("few tokens and unknown heads tell nothing about channels") {
  const Bytes rows = Correlated(40, 1, 8, 0.5f);
  KvTensor tensor = ContiguousTensor(rows.data(), DType::kF32, 40, 1, 8, Order::kTokenHeadDim);
  CHECK_FALSE(CrossChannelGain(tensor));
  tensor = ContiguousTensor(rows.data(), DType::kF32, 160, 1, 2, Order::kTokenHeadDim);
  CHECK(CrossChannelGain(tensor));
  tensor.heads_known = false;
  CHECK_FALSE(CrossChannelGain(tensor));
}

}  // namespace kv::analysis::cross_channel_test
