// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>

#include "lib/study/quantisation/stored_layer.h"
#include "tests/support/attention_case.h"

// Computes from the definition the effect of evicting tokens and storing the rest in smaller types.
namespace kv::quantisation::kept_pair_test {
namespace {

constexpr uint64_t kPrompt = 96;

struct Case {
  std::unique_ptr<test::AttentionCase> made = test::MakeAttentionCase({1, 4, 2, 32, 128, 0}, 5);
  LayerAttention attention{made->trace, made->trace.layers[0], made->snapshot.layers[0]};
  ThreadPool pool{2};
  StoreRequest request;
  eviction::MeasuredRows rows = eviction::ChooseRows(kPrompt, 128, 0, 0);
  StoredLayer stored;

  Case() {
    request.k_types = request.v_types = {quant::FindCacheType("q4_0")};
    request.engine_q = EngineQ::kExact;
    stored = StoreLayer(attention, 1, request, pool);
  }

  // At the end of the prompt, every third token is evicted from the first kv head, every fifth from
  // the other.
  static eviction::LayerPlan Plan() {
    eviction::LayerPlan plan;
    plan.units = 2;
    for (uint64_t j = 0; j < kPrompt; ++j) {
      if (j % 3 == 1) plan.Drop(0, j, kPrompt - 1);
      if (j % 5 == 1) plan.Drop(1, j, kPrompt - 1);
    }
    return plan;
  }
};

// Returns |o' - o|^2 of one row and head, in double.
double ErrorByHand(const Case& c, const eviction::LayerPlan& plan, uint32_t head, uint64_t row) {
  const uint32_t dim = 32, kv_head = head / 2;
  std::vector<float> q(dim);
  ReadQueries(c.made->trace.layers[0], head, row, 1, q.data());
  const auto output = [&](bool changed) {
    std::vector<double> out(dim);
    double total = 0;
    for (uint64_t j = 0; j <= row; ++j) {
      if (changed && plan.last_seen(kv_head, j) < row) continue;
      const size_t at = (j * 2 + kv_head) * dim;
      const auto value = [&](const std::vector<float>& full, const StoredSide& side, size_t i) {
        return static_cast<double>(full[i]) +
               (changed ? static_cast<double>(side.difference[i]) : 0.0);
      };
      double score = 0;
      for (uint32_t d = 0; d < dim; ++d)
        score += static_cast<double>(q[d]) * value(c.stored.k, c.stored.k_stored[0], at + d);
      const double weight = std::exp(score / std::sqrt(32.0));
      total += weight;
      for (uint32_t d = 0; d < dim; ++d)
        out[d] += weight * value(c.stored.v, c.stored.v_stored[0], at + d);
    }
    for (double& x : out) x /= total;
    return out;
  };
  const std::vector<double> whole = output(false), other = output(true);
  double sum = 0;
  for (uint32_t d = 0; d < dim; ++d) sum += (other[d] - whole[d]) * (other[d] - whole[d]);
  return sum;
}

}  // namespace

TEST_CASE("eviction and smaller types at once cost what the definition says", "[quantisation]") {
  Case c;
  const eviction::LayerPlan plan = Case::Plan();
  const KeptPair both{&plan, {0, 0}};
  const auto measured = MeasureKept(c.attention, c.stored, c.request, {&both, 1}, c.rows, c.pool);
  for (const uint32_t head : {0u, 3u}) {
    for (const size_t r : {size_t{0}, size_t{31}}) {
      const double error = ErrorByHand(c, plan, head, c.rows.positions[r]);
      CHECK(measured[0][head].error2[r] == Approx(error).epsilon(1e-4));
    }
  }
}

TEST_CASE("without a plan, types cost what they cost alone", "[quantisation]") {
  Case c;
  const eviction::LayerPlan all;  // evicts nothing
  const std::vector<KeptPair> kept = {{nullptr, {0, 0}}, {&all, {0, 0}}, {&all, {}}};
  const auto measured = MeasureKept(c.attention, c.stored, c.request, kept, c.rows, c.pool);
  const auto alone = MeasurePairs(c.attention, c.stored, c.request, {{0, 0}}, c.rows, c.pool);
  for (uint32_t head = 0; head < 4; ++head) {
    CHECK(measured[0][head].error2 == alone[0][head].error2);
    CHECK(measured[1][head].error2 == alone[0][head].error2);
    for (const double error : measured[2][head].error2) CHECK(error == 0);
  }
}

TEST_CASE("as it came, what a plan keeps costs what eviction costs", "[quantisation]") {
  Case c;
  const eviction::LayerPlan plan = Case::Plan();
  const KeptPair evicted{&plan, {}};
  const auto measured =
      MeasureKept(c.attention, c.stored, c.request, {&evicted, 1}, c.rows, c.pool);
  const eviction::LayerPlan* const plans[] = {&plan};
  const auto heads = eviction::MeasureHeads(c.attention, plans, c.rows, c.pool);
  for (uint32_t head = 0; head < 4; ++head) {
    for (size_t r = 0; r < c.rows.positions.size(); ++r)
      CHECK(measured[0][head].error2[r] == Approx(heads[0][head].error2[r]).epsilon(1e-4));
  }
}

}  // namespace kv::quantisation::kept_pair_test
