// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/infinilm/value_stats.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "lib/core/weights/checkpoint.h"
#include "tests/support/sample_weights.h"

namespace kv::value_stats_test {
namespace {

TensorView View(const std::vector<float>& values) {
  return ContiguousView(DType::kF32, {values.size()},
                        reinterpret_cast<const std::byte*>(values.data()));
}

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("statistics are over finite values, the rest is counted") {
  const std::vector<float> values = {1, -3, 0, 2, kInf, std::nanf(""), 1e5f, 1e-9f};
  const ValueStats stats = StatsOfValues(View(values));
  CHECK(stats.values == 8);
  CHECK(stats.nan_count == 1);
  CHECK(stats.infinite_count == 1);
  CHECK(stats.zero_count == 1);
  CHECK(stats.min == -3);
  CHECK(stats.max == 1e5);
  CHECK(stats.mean == Approx(1e5 / 6));
  CHECK(stats.f16_overflows == 1);
  CHECK(stats.f16_flushes == 1);
  CHECK(stats.bf16_overflows == 0);
}

TEST_CASE("fresh linear layers look untrained, trained ones do not") {
  std::mt19937 random(1);
  const float bound = 1 / std::sqrt(80.0f);
  std::uniform_real_distribution<float> fresh(-bound, bound);
  std::vector<float> values(16 * 80);
  for (float& value : values) value = fresh(random);
  CHECK(LooksUntrained(StatsOfValues(View(values)), 80));
  CHECK_FALSE(LooksUntrained(StatsOfValues(View(values)), 160));
  values[7] = 2 * bound;
  CHECK_FALSE(LooksUntrained(StatsOfValues(View(values)), 80));
  for (float& value : values) value *= 0.4f;
  CHECK_FALSE(LooksUntrained(StatsOfValues(View(values)), 80));
}

TEST_CASE("values are compared as numbers, with a tolerance") {
  const std::vector<float> a = {1, 2, std::nanf(""), kInf, -0.0f, 4};
  const std::vector<float> b = {1, 2.5f, std::nanf(""), kInf, 0.0f, 4.1f};
  const ValueDiff exact = DiffValues(View(a), View(b), 0, 0);
  CHECK(exact.different == 2);
  CHECK(exact.beyond == 2);
  CHECK(exact.first_beyond == 1);
  CHECK(exact.max_abs == 0.5);
  CHECK(exact.max_rel == Approx(0.2));
  CHECK(DiffValues(View(a), View(b), 0.2, 0).beyond == 1);
  CHECK(DiffValues(View(a), View(b), 0, 0.2).beyond == 0);
  const std::vector<float> c = {1, 2, 3, kInf, 0, 4};
  CHECK(DiffValues(View(a), View(c), 100, 0).beyond == 1);
  CHECK(DiffValues(View(a), View(a), 0, 0).cosine == 1);
}

TEST_CASE("weights are matched by name, and structure counts") {
  const CompressorWeights a = test::SampleWeights();
  CHECK(DiffWeights(a, a, 0, 0).equal());
  CompressorWeights b = a;
  b.header.num_heads = 8;
  b.dtype = DType::kBF16;
  const WeightsDiff noted = DiffWeights(a, b, 0, 0);
  CHECK(noted.equal());
  CHECK(noted.notes.size() == 2);
  b.blocks[3].bias = {};
  b.blocks[4].weight.shape = {4, 2};
  const WeightsDiff diff = DiffWeights(a, b, 0, 0);
  CHECK_FALSE(diff.equal());
  CHECK(diff.blocks[3].problem == "bias only in A");
  CHECK(diff.blocks[4].problem == "4 x 4 and 4 x 2");

  CheckpointOptions swap;
  swap.prefix_order = {"compress_ik", "compress_iv", "compress_tk", "compress_tv"};
  const WeightsDiff swapped = DiffWeights(a, Adjusted(a, swap), 0, 0);
  CHECK(swapped.structure.size() == 1);
  for (const BlockDiff& block : swapped.blocks) CHECK(block.weight->different == 0);
}

}  // namespace kv::value_stats_test
