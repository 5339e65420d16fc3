// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/rope.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

namespace kv::rope_test {
namespace {

TEST_CASE("a quarter turn swaps the two of a pair", "[rope]") {
  const double cosine[] = {0, 0}, sine[] = {1, 1};
  float halves[] = {1, 2, 3, 4};  // pairs (1, 3) and (2, 4)
  RotatePairs(halves, 2, RopePairs::kHalves, cosine, sine);
  CHECK(halves[0] == -3);
  CHECK(halves[1] == -4);
  CHECK(halves[2] == 1);
  CHECK(halves[3] == 2);
  float neighbours[] = {1, 2, 3, 4};  // pairs (1, 2) and (3, 4)
  RotatePairs(neighbours, 2, RopePairs::kNeighbours, cosine, sine);
  CHECK(neighbours[0] == -2);
  CHECK(neighbours[1] == 1);
  CHECK(neighbours[2] == -4);
  CHECK(neighbours[3] == 3);
}

TEST_CASE("pairs are rotated in double and rounded once", "[rope]") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const RopePairs style : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    for (const size_t pairs : {0u, 1u, 2u, 3u, 7u, 8u, 9u, 16u, 31u, 64u}) {
      for (const size_t shift : {0u, 1u}) {  // shift 1: misaligned by one float
        INFO("pairs " << pairs << " shift " << shift);
        std::vector<float> values(2 * pairs + 3);
        for (float& v : values) v = normal(random);
        if (pairs > 2) values[shift + 1] = INFINITY;
        std::vector<double> cosines(pairs), sines(pairs);
        std::vector<float> want = values;
        for (size_t i = 0; i < pairs; ++i) {
          const double angle = 10.0 * normal(random);
          cosines[i] = std::cos(angle);
          sines[i] = std::sin(angle);
          const bool halves = style == RopePairs::kHalves;
          const size_t at_x = shift + (halves ? i : 2 * i);
          const size_t at_y = shift + (halves ? pairs + i : 2 * i + 1);
          const double x = values[at_x], y = values[at_y];
          want[at_x] = static_cast<float>(x * cosines[i] - y * sines[i]);
          want[at_y] = static_cast<float>(y * cosines[i] + x * sines[i]);
        }
        RotatePairs(values.data() + shift, pairs, style, cosines.data(), sines.data());
        CHECK(values == want);  // compares also the bytes around the output
      }
    }
  }
}

}  // namespace
}  // namespace kv::rope_test
