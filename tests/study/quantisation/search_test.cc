// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>

#include "lib/study/quantisation/replay.h"

namespace kv::quantisation::search_test {
namespace {

// Two layers with two pairs, the second of which halves the bytes; rows change by `change`.
ReplayResult TwoLayers(bool gradients, double change) {
  ReplayResult result;
  result.pairs = {{0, 0}, {1, 1}};
  result.tokens = 10;
  if (gradients) result.kl_method = eviction::KlMethod::kGradients;
  result.measured = {0, 2, {0, 1}};
  for (const uint32_t layer : {0u, 1u}) {
    LayerFigures figures;
    figures.layer = layer;
    figures.full_bytes = 400;
    figures.k_bytes = figures.v_bytes = {200, 100};
    for (const double of : {std::isnan(change) ? change : 0.0, change}) {
      PairFigures all{of, of, of, of, of, of, 2, std::isnan(of) ? 2u : 0u};
      figures.all.push_back(all);
      figures.cosines.push_back({1 - of, 1 - of});
      if (gradients) figures.changes.push_back({1, 2, {of, of}});
    }
    result.layers.push_back(std::move(figures));
  }
  return result;
}

TEST_CASE("Nothing is chosen where no row says what a type costs") {
  for (const bool gradients : {false, true}) {
    INFO(gradients);
    const SearchResult known = Search(TwoLayers(gradients, 1e-3), {0.1, {}}, {true, true});
    REQUIRE(known.best);
    CHECK(known.best->bytes == 400);
    const SearchResult unknown = Search(TwoLayers(gradients, NAN), {0.1, {}}, {true, true});
    CHECK_FALSE(unknown.best);
    CHECK_FALSE(unknown.best_uniform);
    CHECK(unknown.path.size() == 1);
  }
}

}  // namespace
}  // namespace kv::quantisation::search_test
