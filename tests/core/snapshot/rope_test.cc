// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/rope.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/base/error.h"

namespace kv::blend::rope_test {
namespace {

std::vector<float> Row(uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(count);
  for (float& v : row) v = normal(random);
  return row;
}

void Rotate(const Rope& rope, uint32_t head_dim, int64_t positions, std::vector<float>& row) {
  const std::vector<int64_t> turns = {positions};
  RopeTable(rope, head_dim, turns)
      .Rotate(0, static_cast<uint32_t>(row.size()) / head_dim, row.data());
}

double Largest(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

TEST_CASE("turning there and back gives the key", "[blend]") {
  for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
    Rope rope;
    rope.pairs = pairs;
    std::vector<float> row = Row(128, 1);
    const std::vector<float> before = row;
    Rotate(rope, 64, 4000, row);
    CHECK(Largest(row, before) > 0.1);
    Rotate(rope, 64, -4000, row);
    CHECK(Largest(row, before) < 1e-6);
  }
}

TEST_CASE("turning by p and then by q - p is turning by q", "[blend]") {
  Rope rope;
  rope.theta = 500000;
  rope.scaling = ParseScaling("llama3");
  std::vector<float> twice = Row(128, 2), once = twice;
  Rotate(rope, 128, 700, twice);
  Rotate(rope, 128, 8191 - 700, twice);
  Rotate(rope, 128, 8191, once);
  CHECK(Largest(once, twice) < 1e-6);
}

TEST_CASE("values beyond the rotated part stay as they are, and so does a turn by nothing",
          "[blend]") {
  Rope rope;
  rope.rotary_dim = 32;
  std::vector<float> row = Row(64, 3);
  const std::vector<float> before = row;
  Rotate(rope, 64, 0, row);
  CHECK(row == before);
  Rotate(rope, 64, 5, row);
  CHECK(std::vector<float>(row.begin() + 32, row.end()) ==
        std::vector<float>(before.begin() + 32, before.end()));
  CHECK(row[0] != before[0]);
}

TEST_CASE("scalings divide frequencies as their models do", "[blend]") {
  Rope rope;
  const std::vector<double> plain = InverseFrequencies(rope, 128);
  CHECK(plain[0] == 1);
  rope.scaling = ParseScaling("linear:4");
  CHECK(InverseFrequencies(rope, 128)[10] == plain[10] / 4);
  rope.scaling = ParseScaling("llama3:8,1,4,8192");
  const std::vector<double> llama = InverseFrequencies(rope, 128);
  CHECK(llama[0] == plain[0]);        // short wavelengths are not scaled
  CHECK(llama[63] == plain[63] / 8);  // long wavelengths are scaled by 8
  for (size_t i = 1; i < llama.size(); ++i) CHECK(llama[i] < llama[i - 1]);
}

TEST_CASE("scalings are named exactly, or refused", "[blend]") {
  CHECK(Name(ParseScaling("llama3")) == "llama3:8,1,4,8192");
  CHECK(Name(ParseScaling("linear:2.5")) == "linear:2.5");
  CHECK(Name(ParseScaling("none")) == "none");
  for (const char* text : {"", "linear", "linear:0", "linear:-1", "linear:2,3", "llama3:8",
                           "llama3:8,4,1,8192", "none:1", "linear:x", "llama3:8,1,4,nan"}) {
    INFO(text);
    CHECK_THROWS_AS(ParseScaling(text), Error);
  }
  try {
    ParseScaling("mrope");
    FAIL("mrope was accepted");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kUnsupportedKind);
    CHECK_FALSE(error.hint().empty());  // the hint names an alternative
  }
  for (const char* text : {"yarn:4", "yarn:4,8192,32", "dynamic:2", "longrope", "proportional"})
    CHECK_THROWS_AS(ParseScaling(text), Error);
  CHECK(Name(ParseScaling("yarn:4,8192")) == "yarn:4,8192,32,1");
  CHECK(Name(ParseScaling("yarn:4,8192,16,2,1.5")) == "yarn:4,8192,16,2,1.5");
  CHECK(Name(ParseScaling("dynamic:2,2048")) == "dynamic:2,2048");
}

TEST_CASE("the factor of YaRN is put on a key once, when it is rotated first", "[blend]") {
  Rope rope;
  rope.scaling = ParseScaling("yarn:4,8192");
  const double factor = AttentionFactor(rope.scaling);
  CHECK(factor == Approx(0.1 * std::log(4.0) + 1));
  std::vector<float> first = Row(64, 5), shifted = first;
  const std::vector<KeyShift> there = {{0, 900, 1000, 1000, true}},
                              half = {{0, 0, 1000, 1000, true}},
                              rest = {{0, 900, 1000, 1000, false}};
  RopeTable(rope, 64, there).Rotate(0, 1, first.data());
  RopeTable(rope, 64, half).Rotate(0, 1, shifted.data());  // the scale applies at position 0, too
  RopeTable(rope, 64, rest).Rotate(0, 1, shifted.data());
  CHECK(Largest(first, shifted) < 2e-6);
  double before = 0, after = 0;
  for (const float v : Row(64, 5)) before += double{v} * v;
  for (const float v : first) after += double{v} * v;
  CHECK(std::sqrt(after / before) == Approx(factor).epsilon(1e-6));
}

TEST_CASE("keys of a short run turn to where a long run has them", "[blend]") {
  Rope rope;
  rope.scaling = ParseScaling("dynamic:2,100");
  std::vector<float> direct = Row(64, 6), again = direct;
  const std::vector<KeyShift> in_long = {{0, 350, 400, 400, true}},
                              in_short = {{0, 50, 80, 80, true}}, on = {{50, 350, 80, 400, false}},
                              stays = {{50, 50, 80, 80, false}}, other = {{50, 50, 80, 400, false}};
  RopeTable(rope, 64, in_long).Rotate(0, 1, direct.data());
  RopeTable(rope, 64, in_short).Rotate(0, 1, again.data());
  RopeTable(rope, 64, on).Rotate(0, 1, again.data());
  CHECK(Largest(direct, again) < 2e-6);
  CHECK_FALSE(RopeTable(rope, 64, stays).rotates_anything());
  // The positions are equal, but the bases differ.
  CHECK(RopeTable(rope, 64, other).rotates_anything());
}

TEST_CASE("a rotation that does not fit the head is refused", "[blend]") {
  Rope rope;
  RequireFit(rope, 64);
  CHECK_THROWS_AS(RequireFit(rope, 63), Error);
  rope.rotary_dim = 128;
  CHECK_THROWS_AS(RequireFit(rope, 64), Error);
  rope.rotary_dim = 0;
  rope.theta = 0;
  CHECK_THROWS_AS(RequireFit(rope, 64), Error);
}

}  // namespace
}  // namespace kv::blend::rope_test
