// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/transform/weights.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/attention_case.h"
#include "tests/support/refusal.h"

namespace kv::transform {
namespace {

constexpr test::CaseShape kShape = {2, 4, 2, 8, 60};
constexpr GradientRows kRows = {40, 20, 2};
constexpr uint64_t kSinks = 4, kWindow = 8;

std::unique_ptr<test::AttentionCase> MakeCase() {
  auto made = test::MakeAttentionCase(kShape, 3);
  test::AddGradients(*made, kRows, 4);
  made->snapshot.key_rotation = KeyRotation::kUnrotated;
  return made;
}

// K and V of one layer, [token][head][dim], for whose changes outputs are computed anew.
struct Layer {
  std::vector<float> k, v;
};

// Returns the sum over rows and query heads of g . o of one sample.
double SumProducts(const test::AttentionCase& made, const TraceLayer& rows, const Layer& layer,
                   uint64_t sample) {
  double sum = 0;
  std::vector<float> q(kShape.dim), g(kShape.dim);
  for (uint32_t head = 0; head < kShape.query_heads; ++head) {
    const uint64_t at = head / 2 * kShape.dim, row = 2 * kShape.dim;
    for (uint64_t position = kRows.begin; position < kRows.end(); ++position) {
      ReadQueries(rows, head, position, 1, q.data());
      ReadGradient(made.trace, rows, sample, position, head, g.data());
      double total = 0, products = 0;
      for (uint64_t j = 0; j <= position; ++j) {
        double score = 0, product = 0;
        for (uint32_t d = 0; d < kShape.dim; ++d) {
          score += static_cast<double>(q[d]) * static_cast<double>(layer.k[j * row + at + d]);
          product += static_cast<double>(g[d]) * static_cast<double>(layer.v[j * row + at + d]);
        }
        const double weight = std::exp(score / std::sqrt(double{kShape.dim}));
        total += weight;
        products += weight * product;
      }
      sum += products / total;
    }
  }
  return sum;
}

// Returns the weight of a feature of a layer from differences of the sums above.
double MeasureWeight(const test::AttentionCase& made, uint32_t index, uint64_t feature,
                     bool is_key) {
  const LayerKv& kv = made.snapshot.layers[index];
  const TraceLayer& rows = made.trace.layers[index];
  Layer layer{GatherFloats(kv.k, 0, kShape.tokens, Order::kTokenHeadDim),
              GatherFloats(*kv.v, 0, kShape.tokens, Order::kTokenHeadDim)};
  std::vector<float>& values = is_key ? layer.k : layer.v;
  constexpr float kStep = 0x1p-7f;
  double weight = 0;
  for (uint64_t sample = 0; sample < kRows.samples; ++sample) {
    for (uint64_t j = kSinks; j < kRows.begin - kWindow; ++j) {
      float& value = values[j * 2 * kShape.dim + feature];
      const float before = value;
      value = before + kStep;
      const double above = SumProducts(made, rows, layer, sample);
      value = before - kStep;
      const double below = SumProducts(made, rows, layer, sample);
      value = before;
      weight += std::pow((above - below) / (2 * static_cast<double>(kStep)), 2);
    }
  }
  return weight / static_cast<double>(kRows.samples * kRows.rows);
}

}  // namespace

TEST_CASE("transform weights: they are the squared slopes of the recorded losses") {
  const auto made = MakeCase();
  ThreadPool pool(2);
  LossWeights weights;
  weights.Add(made->snapshot, made->trace, nullptr, kSinks, kWindow, pool);
  for (const bool is_key : {true, false}) {
    const std::vector<float> all = weights.Get(is_key);
    REQUIRE(all.size() == 32);
    for (const uint64_t feature : {0, 11, 21, 31}) {
      const double measured =
          MeasureWeight(*made, static_cast<uint32_t>(feature / 16), feature % 16, is_key);
      CHECK(all[feature] == Approx(measured).epsilon(0.01));
    }
  }
  // A second run that equals the first changes no average.
  const std::vector<float> once = weights.Get(true);
  weights.Add(made->snapshot, made->trace, nullptr, kSinks, kWindow, pool);
  CHECK(weights.runs() == 2);
  const std::vector<float> twice = weights.Get(true);
  for (size_t i = 0; i < once.size(); ++i) CHECK(twice[i] == Approx(once[i]));
}

TEST_CASE("transform weights: traces that cannot weigh are refused") {
  ThreadPool pool(1);
  const auto finding = [&](const test::AttentionCase& made, uint64_t sinks, LossWeights weights) {
    return test::FindingOf(
        [&] { weights.Add(made.snapshot, made.trace, nullptr, sinks, kWindow, pool); });
  };
  auto made = MakeCase();
  CHECK(finding(*made, 60, {}) == Finding::kUsage);  // with 60 sinks every token is exact
  made->snapshot.key_rotation = KeyRotation::kUnknown;
  CHECK(finding(*made, kSinks, {}) == Finding::kUsage);  // the request gives no rope
  made = MakeCase();
  made->trace.layers[1].gradients.reset();
  CHECK(finding(*made, kSinks, {}) == Finding::kTraceMismatch);
  made->trace.gradients.reset();
  CHECK(finding(*made, kSinks, {}) == Finding::kTraceMismatch);
  LossWeights weights;
  made = MakeCase();
  weights.Add(made->snapshot, made->trace, nullptr, kSinks, kWindow, pool);
  auto other = test::MakeAttentionCase({3, 4, 2, 8, 60}, 3);
  test::AddGradients(*other, kRows, 4);
  other->snapshot.key_rotation = KeyRotation::kUnrotated;
  CHECK(finding(*other, kSinks, weights) == Finding::kUsage);
}

}  // namespace kv::transform
