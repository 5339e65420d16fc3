// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/hadamard.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

namespace kv::hadamard_test {
namespace {

// Computes the plain transform; the order of its additions is part of the specification.
void ButterfliesInOrder(float* values, size_t count, uint32_t size) {
  for (size_t half = 1; half < size; half *= 2) {
    for (size_t low = 0; low < count; ++low) {
      if (low & half) continue;
      const float a = values[low], b = values[low + half];
      values[low] = a + b;
      values[low + half] = a - b;
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (size_t i = 0; i < count; ++i) values[i] *= scale;
}

TEST_CASE("the transform is the Sylvester matrix over the root of its size", "[hadamard]") {
  constexpr uint32_t kSize = 64;
  std::mt19937 random(7);
  std::vector<float> values(kSize);
  for (float& v : values) v = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  std::vector<float> got = values;
  Hadamard(got.data(), kSize, kSize);
  for (uint32_t row = 0; row < kSize; ++row) {
    double sum = 0;
    for (uint32_t column = 0; column < kSize; ++column)
      sum += (std::popcount(row & column) % 2 == 0 ? 1.0 : -1.0) * values[column];
    CHECK(got[row] == Approx(sum / 8.0).margin(1e-5));
  }
  Hadamard(got.data(), kSize, kSize);
  for (uint32_t i = 0; i < kSize; ++i) CHECK(got[i] == Approx(values[i]).margin(1e-6));
}

TEST_CASE("the transform adds in the specified order", "[hadamard]") {
  std::mt19937 random(11);
  for (const uint32_t size : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 256u, 1024u}) {
    for (const size_t pieces : {1u, 3u}) {
      for (const size_t shift : {0u, 1u}) {  // shift 1: misaligned by one float
        INFO("size " << size << " pieces " << pieces << " shift " << shift);
        const size_t count = size * pieces;
        std::vector<float> values(count + 2);
        for (float& v : values) v = static_cast<float>(random() % 20001) / 777.0f - 13.0f;
        std::vector<float> want = values;
        ButterfliesInOrder(want.data() + shift, count, size);
        Hadamard(values.data() + shift, count, size);
        CHECK(values == want);  // compares also the bytes around the output
      }
    }
  }
}

}  // namespace
}  // namespace kv::hadamard_test
