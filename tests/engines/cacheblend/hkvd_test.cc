// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/base/error.h"
#include "lib/engines/cacheblend/deviation.h"

namespace kv::blend::hkvd_test {
namespace {

using Indices = std::vector<uint64_t>;

TEST_CASE("the number of tokens is truncated, as the double product falls", "[blend]") {
  CHECK(TopCount(100, 0.29) == 28);
  CHECK(TopCount(100, 0.57) == 56);
  CHECK(TopCount(100, 0.58) == 57);
  CHECK(TopCount(100, 1) == 100);
  CHECK(TopCount(0, 0.5) == 0);
  CHECK(TopCount(3, 0.3) == 0);
  for (const double ratio : {-0.1, 1.01, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    CHECK_THROWS_AS(TopCount(16, ratio), Error);
  }
}

TEST_CASE("the best tokens come ascending, the suffix after them", "[blend]") {
  const Ranking ranking({5, 1, 9, 3});
  const Selection got = ranking.Select(2, 6);
  CHECK(got.indices == Indices{0, 2, 4, 5});
  CHECK(got.kept_min == 5.0f);
  CHECK(got.dropped_max == 3.0f);
  CHECK(got.margin == 2.0);
  CHECK(got.ties == 0);
  CHECK(!ranking.Select(0, 4).kept_min);
  CHECK(!ranking.Select(4, 4).dropped_max);
}

TEST_CASE("of equal scores the lower index wins, and the tie is counted", "[blend]") {
  const Selection got = Ranking({2, 7, 2, 2, 1}).Select(2, 5);
  CHECK(got.indices == Indices{0, 1});
  CHECK(got.margin == 0.0);
  CHECK(got.ties == 3);
}

TEST_CASE("NaN ranks above infinity, infinity above numbers", "[blend]") {
  const Ranking ranking({1, INFINITY, NAN, 3, NAN});
  CHECK(ranking.nonfinite() == 3);
  CHECK(ranking.Select(2, 5).indices == Indices{2, 4});
  CHECK(ranking.Select(3, 5).indices == Indices{1, 2, 4});
  CHECK(ranking.Select(4, 5).indices == Indices{1, 2, 3, 4});
  const Selection tied = ranking.Select(1, 5);  // one of the NaNs is kept, the other dropped
  CHECK(tied.ties == 2);
  CHECK(tied.margin == 0.0);
}

TEST_CASE("selections of smaller ratios are contained in larger ones", "[blend]") {
  std::mt19937 random(9);
  std::vector<float> scores(97);
  for (float& score : scores) score = static_cast<float>(random() % 13);
  const Ranking ranking(scores);
  Indices before;
  for (uint64_t k = 0; k <= scores.size(); ++k) {
    const Indices now = ranking.Select(k, scores.size()).indices;
    CHECK(now.size() == k);
    CHECK(std::includes(now.begin(), now.end(), before.begin(), before.end()));
    before = now;
  }
}

TEST_CASE("16-bit scores round each step", "[blend]") {
  const std::vector<float> full = {300, 1}, old = {0, 0};
  CHECK(std::isinf(ScoreInDtype(full.data(), old.data(), 2, DType::kF16)));  // 300^2 > 65504
  CHECK(ScoreInDtype(full.data(), old.data(), 2, DType::kF32) == 90001);
  CHECK(ScoreInDtype(full.data(), old.data(), 2, DType::kBF16) == 90112);  // 8 bits of mantissa
  const std::vector<float> a = {1.01f}, b = {0.0f};
  CHECK(ScoreInDtype(a.data(), b.data(), 1, DType::kBF16) == 1.015625f);
}

TEST_CASE("overlap and rank correlation", "[blend]") {
  const std::vector<uint32_t> a = {4, 2, 0, 1, 3}, b = {2, 3, 4, 0, 1};
  const auto overlap = MeasureOverlap(a, b, 3);
  REQUIRE(overlap);
  CHECK(overlap->share == Approx(2.0 / 3));
  CHECK(overlap->jaccard == Approx(2.0 / 4));
  CHECK(!MeasureOverlap(a, b, 0));
  const std::vector<double> x = {1, 2, 3, 4}, y = {10, 20, 30, 25}, same = {7, 7, 7, 7};
  CHECK(Spearman(x, x) == 1.0);
  CHECK(*Spearman(x, y) == Approx(0.8));
  CHECK(!Spearman(x, same));
  const std::vector<double> tied = {1, 2, 2, 3}, nan = {1, NAN, 2, 3};
  CHECK(*Spearman(x, tied) == Approx(0.9486832980505138));
  CHECK(!Spearman(x, nan));
}

}  // namespace
}  // namespace kv::blend::hkvd_test
