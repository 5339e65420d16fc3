// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/cast.h"

#include <catch2/catch.hpp>

#include "lib/core/base/half.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/mlp_weights.h"

namespace kv::cast_test {

TEST_CASE("casting a cache rounds every value to nearest", "[snapshot]") {
  const Snapshot cache = test::MakeCache({.order = Order::kHeadDimToken});
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Snapshot cast = CastSnapshot(cache, dtype, pool);
    for (size_t i = 0; i < cache.layers.size(); ++i) {
      const std::vector<float> from = GatherFloats(*cache.layers[i].v, 0, 20, Order::kTokenHeadDim);
      const std::vector<float> to = GatherFloats(*cast.layers[i].v, 0, 20, Order::kTokenHeadDim);
      CHECK(cast.layers[i].v->dtype == dtype);
      for (size_t j = 0; j < from.size(); ++j) {
        REQUIRE(to[j] == (dtype == DType::kF16 ? F16ToF32(F32ToF16(from[j]))
                                               : BF16ToF32(F32ToBF16(from[j]))));
      }
    }
  }
}

TEST_CASE("a cache that has the type already stays where it is", "[snapshot]") {
  const Snapshot cache = test::MakeCache({});
  ThreadPool pool(1);
  const Snapshot same = CastSnapshot(cache, DType::kF32, pool);
  CHECK(same.layers[0].k.pieces[0].data == cache.layers[0].k.pieces[0].data);
  CHECK(same.spools.size() == cache.spools.size());
}

TEST_CASE("heads that are unknown stay unknown, other types are refused", "[snapshot]") {
  Snapshot cache = test::MakeCache({});
  cache.layers[0].k.heads_known = false;
  ThreadPool pool(1);
  CHECK_FALSE(CastSnapshot(cache, DType::kF16, pool).layers[0].k.heads_known);
  CHECK_THROWS_AS(CastSnapshot(cache, DType::kQ8_0, pool), Error);
}

}  // namespace kv::cast_test
