// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/attention/probabilities.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace kv::probabilities_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool AllNan(const std::vector<double>& row) {
  return std::all_of(row.begin(), row.end(), [](double p) { return std::isnan(p); });
}

TEST_CASE("the first position seen is where a window begins", "[attention]") {
  for (const uint64_t window : {0u, 1u, 2u, 5u, 100u}) {
    const AttentionRule rule{0, 0, window};
    for (uint64_t position = 0; position < 12; ++position) {
      uint64_t first = 0;
      while (!rule.Sees(static_cast<int64_t>(position), static_cast<int64_t>(first))) ++first;
      INFO("window " << window << ", position " << position);
      CHECK(rule.FirstSeen(position) == first);
      CHECK_FALSE(rule.Sees(static_cast<int64_t>(position), static_cast<int64_t>(position) + 1));
    }
  }
}

TEST_CASE("a scale of zero stands for the root of the head size", "[attention]") {
  CHECK(AttentionRule{}.ScaleFor(64) == 0.125);
  CHECK(AttentionRule{0.5, 0, 0}.ScaleFor(64) == 0.5);
}

TEST_CASE("a softcap bounds scores, and zero is none", "[attention]") {
  CHECK(Softcapped(7.0, 0.0) == 7.0);
  CHECK(Softcapped(7.0, 2.0) == 2.0 * std::tanh(3.5));
  CHECK(Softcapped(7.0f, 2.0f) == 2.0f * std::tanh(3.5f));
}

TEST_CASE("softmax gives hidden keys nothing and hides no NaN", "[attention]") {
  std::vector<double> row = {-kInfinity, std::log(3.0), 0};
  Softmax(row);
  CHECK(row[0] == 0);
  CHECK(row[1] == Approx(0.75));
  CHECK(row[2] == Approx(0.25));
  std::vector<double> with_nan = {1, kNan, 2};
  Softmax(with_nan);
  CHECK(AllNan(with_nan));
  std::vector<double> sees_nothing = {-kInfinity, -kInfinity};
  Softmax(sees_nothing);
  CHECK(AllNan(sees_nothing));
}

TEST_CASE("a query that sees no key has no probabilities, an infinite score no numbers",
          "[attention]") {
  const std::vector<float> q = {1, 1, 1}, k = {1, std::numeric_limits<float>::infinity()};
  const std::vector<int64_t> positions = {-1, 0, 1};
  std::vector<double> p(6);
  AttentionProbabilities({MakeMatrix(q, 3, 1), positions}, {MakeMatrix(k, 2, 1), {}, {}, {}}, {}, 0,
                         3, p);
  CHECK(p[0] == 0);
  CHECK(p[1] == 0);
  CHECK(p[2] == 1);
  CHECK(p[3] == 0);
  CHECK(std::isnan(p[4]));
  CHECK(std::isnan(p[5]));
}

}  // namespace
}  // namespace kv::probabilities_test
