// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/distribution.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace kv::distribution_test {

TEST_CASE("quantiles interpolate between ranks as numpy does", "[metrics]") {
  const Distribution d = Describe({4, 1, 3, 2});
  CHECK(d.count == 4);
  CHECK(d.mean == 2.5);
  CHECK(d.min == 1);
  CHECK(d.max == 4);
  CHECK(d.p50 == 2.5);
  CHECK(d.p5 == Approx(1.15));   // numpy.quantile([1,2,3,4], 0.05)
  CHECK(d.p95 == Approx(3.85));  // numpy.quantile([1,2,3,4], 0.95)
  CHECK(d.p99 == Approx(3.97));
}

TEST_CASE("a distribution counts NaNs and keeps infinities", "[metrics]") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Distribution d = Describe({std::nan(""), 1, infinity, infinity, infinity});
  CHECK(d.count == 4);
  CHECK(d.nans == 1);
  CHECK(d.min == 1);
  CHECK(d.p95 == infinity);
  CHECK(d.max == infinity);
  CHECK(std::isinf(d.mean));
  const Distribution none = Describe({});
  CHECK(none.count == 0);
  CHECK(std::isnan(none.mean));
  CHECK(std::isnan(none.max));
  CHECK(std::isnan(Describe({std::nan("")}).p95));
}

}  // namespace kv::distribution_test
