// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/bench/bound.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/base/half.h"

namespace kv::bound_test {
namespace {

// Draws rows in which each channel is `memory` times its value above plus noise, all of variance 1.
Bytes Rows(uint64_t rows, uint64_t columns, double memory) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> x(columns);
  Bytes raw(2 * rows * columns);
  for (double& one : x) one = normal(random);
  for (uint64_t i = 0; i < rows * columns; ++i) {
    double& one = x[i % columns];
    one = memory * one + std::sqrt(1 - memory * memory) * normal(random);
    StoreLE(raw.data() + 2 * i, F32ToF16(static_cast<float>(one)));
  }
  return raw;
}

// Returns the entropy of a normal value of variance 1 in f16.
double Entropy() {
  double bits = 0;
  const auto below = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  for (uint32_t half = 0; half < 0x4800; ++half) {
    const double x = static_cast<double>(F16ToF32(static_cast<uint16_t>(half)));
    const double next = static_cast<double>(F16ToF32(static_cast<uint16_t>(half + 1)));
    const double before =
        half == 0 ? -next : static_cast<double>(F16ToF32(static_cast<uint16_t>(half - 1)));
    const double p = below((x + next) / 2) - below((before + x) / 2);
    if (p > 0) bits -= (half == 0 ? 1 : 2) * p * std::log2(p);
  }
  return bits;
}

constexpr uint64_t kRows = 600, kColumns = 32;
const ChunkShape kShape{DType::kF16, kRows, 2, kColumns / 2, Order::kTokenHeadDim};

}  // namespace

TEST_CASE("bound: noise takes what its entropy is, and not less", "[bound]") {
  const std::optional<ChunkBounds> bounds = ComputeBounds(kShape, Rows(kRows, kColumns, 0));
  REQUIRE(bounds);
  const double least = Entropy() * kRows * kColumns;
  for (const double bits : {bounds->alone_bits, bounds->above_bits, bounds->mixed_bits}) {
    CHECK(bits > 0.99 * least);
    CHECK(bits < 1.06 * least);
  }
  CHECK(bounds->alone_bits < bounds->above_bits);  // tables without information only cost bits
}

TEST_CASE("bound: what the row above says is found", "[bound]") {
  const std::optional<ChunkBounds> bounds = ComputeBounds(kShape, Rows(kRows, kColumns, 0.98));
  REQUIRE(bounds);
  const double values = kRows * kColumns, gain = -std::log2(std::sqrt(1 - 0.98 * 0.98));
  CHECK(bounds->above_bits < bounds->alone_bits - 0.5 * values);
  CHECK(bounds->mixed_bits < bounds->above_bits - 0.3 * values);
  CHECK(bounds->mixed_bits > (Entropy() - gain - 0.2) * values);
}

TEST_CASE("bound: other types and single rows have none", "[bound]") {
  CHECK(!ComputeBounds({DType::kF32, 300, 2, 16, Order::kTokenHeadDim}, Rows(kRows, kColumns, 0)));
  CHECK(!ComputeBounds({DType::kF16, 1, 1, 64, Order::kTokenHeadDim}, Rows(1, 64, 0)));
}

}  // namespace kv::bound_test
