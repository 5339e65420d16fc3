// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/dense/softmax_change.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/targets.h"

namespace kv::softmax_change_test {
namespace {

std::vector<float> Normal(size_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = scale * normal(random);
  return values;
}

}  // namespace

TEST_CASE("a changed softmax is the reference's on every target", "[softmax_change]") {
  for (const size_t count : {1, 2, 15, 16, 17, 64, 333, 2048, 2049, 5000}) {
    for (const float size : {1e-4f, 1e-2f, 0.3f, 2.0f, 40.0f}) {
      std::vector<float> p = Normal(count, 3, static_cast<uint32_t>(count));
      REQUIRE(SoftmaxRow(p.data(), count));
      CHECK(std::accumulate(p.begin(), p.end(), 0.0) == Approx(1).epsilon(1e-5));
      const std::vector<float> change = Normal(count, size, 9);
      std::vector<float> expected = change;
      const SoftmaxChange wanted = ref::ChangeSoftmax(p.data(), expected.data(), count);
      test::ForEachTarget([&](const std::string& target) {
        INFO(target << ": " << count << " values, changes of " << size);
        std::vector<float> got = change;
        const SoftmaxChange is = ChangeSoftmax(p.data(), got.data(), count);
        // For small changes the reference loses digits: it subtracts figures near 1.
        CHECK(is.kl == Approx(wanted.kl).epsilon(1e-4).margin(2e-7));
        CHECK(is.moved == Approx(wanted.moved).epsilon(1e-3).margin(1e-9));
        for (size_t i = 0; i < count; ++i)
          REQUIRE(got[i] == Approx(expected[i]).epsilon(1e-3).margin(2e-7));
      });
    }
  }
}

TEST_CASE("no change of scores changes nothing, and a NaN everything", "[softmax_change]") {
  std::vector<float> p = Normal(100, 2, 4);
  REQUIRE(SoftmaxRow(p.data(), 100));
  std::vector<float> change(100, 0.0f);
  const SoftmaxChange none = ChangeSoftmax(p.data(), change.data(), 100);
  CHECK(none.kl == 0);
  CHECK(none.moved == 0);
  CHECK(std::all_of(change.begin(), change.end(), [](float e) { return e == 0; }));
  change[7] = NAN;
  CHECK(std::isnan(ChangeSoftmax(p.data(), change.data(), 100).kl));
  std::vector<float> bad = {1, NAN, 2}, infinite = {1, INFINITY};
  CHECK_FALSE(SoftmaxRow(bad.data(), bad.size()));
  CHECK_FALSE(SoftmaxRow(infinite.data(), infinite.size()));
}

TEST_CASE("the largest values are found with and without a hint", "[softmax_change]") {
  for (const size_t count : {1, 7, 8, 9, 64, 1000}) {
    std::vector<float> values = Normal(count, 1, 2);
    if (count > 20) values[11] = values[3] = values[count - 1] = 5;  // ties
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
    order.resize(std::min<size_t>(8, count));
    std::vector<uint32_t> hint(std::min<size_t>(8, count));
    std::iota(hint.begin(), hint.end(), 0);
    test::ForEachTarget([&](const std::string& target) {
      INFO(target << " " << count);
      std::vector<uint32_t> got;
      ListLargest(values.data(), count, 8, {}, got);
      CHECK(got == order);
      ListLargest(values.data(), count, 8, hint, got);
      CHECK(got == order);
    });
  }
}

}  // namespace kv::softmax_change_test
