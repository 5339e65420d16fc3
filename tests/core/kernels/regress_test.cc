// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/regress.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/targets.h"

namespace kv::regress_test {
namespace {

// State is a regression that owns its arrays.
struct State {
  State(size_t groups, size_t taps) {
    regress.groups = groups;
    regress.taps = taps;
    regress.sizes = {std::min<size_t>(3, taps), std::min<size_t>(5, taps),
                     std::min<size_t>(13, taps), taps};
    const size_t padded = groups * kRegressLanes;
    const size_t sizes[] = {
        RegressPairs(taps), taps, kRegressModels * taps, taps, kRegressModels, 1, 1};
    for (const size_t size : sizes) count += size * padded;
    memory.resize(count + kRegressLanes);
    while (reinterpret_cast<uintptr_t>(data()) % (kRegressLanes * sizeof(float)) != 0) ++skipped;
    float* at = data();
    const size_t* size = sizes;
    for (float** array : {&regress.products, &regress.moments, &regress.weights, &regress.combined,
                          &regress.errors, &regress.variance, &regress.power}) {
      *array = at;
      at += *size++ * padded;
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  float* data() { return memory.data() + skipped; }

  Regress regress;
  std::vector<float> memory;
  size_t count = 0, skipped = 0;
};

// Rows of taps and values lie anywhere in one array; some rows coincide, some are zero.
struct Rows {
  Rows(size_t rows, size_t taps, size_t padded, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.7f);
    floats.resize(padded + 4096 + padded);
    for (size_t i = padded; i < floats.size(); ++i) floats[i] = normal(random);
    const auto any = [&] { return floats.data() + padded + random() % 4096; };
    for (size_t row = 0; row < rows; ++row) {
      for (size_t tap = 0; tap < taps; ++tap)
        this->taps.push_back(tap == 4 ? floats.data() : tap == 5 ? this->taps.back() : any());
      x.push_back(any());
      predictions.push_back(any());
      roots.push_back(0.25f + static_cast<float>(random() % 64));
    }
  }
  std::vector<float> floats;
  std::vector<const float*> taps, x, predictions;
  std::vector<float> roots;
};

// Runs the steps of a frame between two solutions, by the kernels or by the reference.
struct Kernels {
  decltype(&RegressCombine) combine;
  decltype(&RegressAdd) add;
  decltype(&RegressLearn) learn;
  decltype(&RegressSolve) solve;
};
constexpr Kernels kTested = {RegressCombine, RegressAdd, RegressLearn, RegressSolve};
constexpr Kernels kReference = {ref::RegressCombine, ref::RegressAdd, ref::RegressLearn,
                                ref::RegressSolve};

// Returns all bits of the state after three solutions.
std::vector<uint32_t> Run(const Kernels& kernels, size_t groups, size_t taps, size_t rows) {
  State state(groups, taps);
  const Regress& r = state.regress;
  std::vector<float> results;
  for (uint32_t round = 0; round < 3; ++round) {
    const Rows given(rows, taps, groups * kRegressLanes, round);
    std::vector<size_t> order;
    for (size_t tap = 0; tap < taps; tap += 1 + round) order.push_back(tap);
    kernels.combine(r);
    std::vector<float> sums(groups * kRegressLanes + 1, 0.5f);
    for (size_t group = 0; group < groups; ++group) {
      kernels.add(r, group, given.taps.data(), order.data(), order.size(),
                  sums.data() + 1 + group * kRegressLanes);
    }
    results.insert(results.end(), sums.begin(), sums.end());
    for (size_t row = 0; row < rows; ++row) {
      kernels.learn(r, given.taps.data() + row * taps, given.x[row], given.predictions[row],
                    {0.05f, 1.0f / static_cast<float>(row + 2), 0.02f, 3.0f});
    }
    kernels.solve(r, given.taps.data(), given.x.data(), given.roots.data(), rows, 0.9995f,
                  static_cast<float>(rows * (round + 1)));
  }
  results.insert(results.end(), state.data(), state.data() + state.count);
  std::vector<uint32_t> bits(results.size());
  std::memcpy(bits.data(), results.data(), 4 * bits.size());
  return bits;
}

}  // namespace

TEST_CASE("regressions are the reference's to the last bit", "[regress]") {
  for (const size_t taps : {5, 6, 13, 31, 45}) {
    for (const size_t groups : {1, 2, 5}) {
      for (const size_t rows : {1, 7, 16}) {
        if (taps == 45 && groups == 5) continue;  // slow
        const std::vector<uint32_t> expected = Run(kReference, groups, taps, rows);
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << ", " << groups << " groups of " << taps << " taps, " << rows << " rows");
          REQUIRE(Run(kTested, groups, taps, rows) == expected);
        });
      }
    }
  }
}

TEST_CASE("weights are those of the least squares, ever more of the taps", "[regress]") {
  // x = 0.5 a - 0.25 b + 0.125 c + noise; the first model has only a and b, and c resembles a.
  constexpr size_t kTaps = 5, kRows = 16;
  State state(1, kTaps);
  state.regress.sizes = {2, 3, 5, 5};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  float samples = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::vector<float>> rows;
    std::vector<const float*> taps, x;
    rows.reserve(kRows * (kTaps + 1));
    const std::vector<float> roots(kRows, 1.0f);
    for (size_t row = 0; row < kRows; ++row) {
      const size_t first = rows.size();
      for (size_t tap = 0; tap <= kTaps; ++tap) {
        rows.emplace_back(kRegressLanes);
        for (float& value : rows.back()) value = 0.3f * normal(random);
      }
      for (size_t lane = 0; lane < kRegressLanes; ++lane) {
        const auto tap = [&](size_t i) -> float& { return rows[first + i][lane]; };
        tap(2) += tap(0);
        tap(kTaps) = 0.5f * tap(0) - 0.25f * tap(1) + 0.125f * tap(2) + 0.01f * normal(random);
      }
      for (size_t tap = 0; tap < kTaps; ++tap) taps.push_back(rows[first + tap].data());
      x.push_back(rows[first + kTaps].data());
    }
    samples += kRows;
    RegressSolve(state.regress, taps.data(), x.data(), roots.data(), kRows, 1.0f, samples);
  }
  const float expected[kRegressModels][kTaps] = {{0.625f, -0.25f, 0, 0, 0},
                                                 {0.5f, -0.25f, 0.125f, 0, 0},
                                                 {0.5f, -0.25f, 0.125f, 0, 0},
                                                 {0.5f, -0.25f, 0.125f, 0, 0}};
  for (size_t model = 0; model < kRegressModels; ++model) {
    for (size_t tap = 0; tap < kTaps; ++tap) {
      for (size_t lane = 0; lane < kRegressLanes; ++lane) {
        INFO("model " << model << ", tap " << tap << ", lane " << lane);
        CHECK(std::abs(state.regress.weights[(model * kTaps + tap) * kRegressLanes + lane] -
                       expected[model][tap]) < 0.02f);
      }
    }
  }
}

}  // namespace kv::regress_test
