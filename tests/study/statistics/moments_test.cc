// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "lib/core/base/half.h"
#include "lib/core/kernels/counts.h"
#include "lib/study/statistics/distribution.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv::moments_test {

TEST_CASE("moments are over finite values and do not mind how often a value is given") {
  std::mt19937 random(4);
  std::vector<uint64_t> patterns(65536);
  Moments one_by_one;
  for (int i = 0; i < 5000; ++i) {
    const auto pattern = static_cast<uint16_t>(i == 0 ? 0x7e00 : i < 3 ? 0xfc00 : random() % 31744);
    ++patterns[pattern];
    one_by_one.Add(F16ToF32(pattern));
  }
  const ValueSummary a = one_by_one.Finish();
  const TensorStats b = ComputePatternStats(DType::kF16, patterns);
  CHECK(a.values == 5000);
  CHECK(b.values == 5000);
  CHECK(b.bytes == 10000);
  CHECK(a.nan_count == 1);
  CHECK(b.nan_count == 1);
  CHECK(b.infinite_count == 2);
  CHECK(a.zero_count == b.zero_count);
  CHECK(a.min == b.min);
  CHECK(a.max == b.max);
  CHECK(a.mean == Approx(b.mean));
  CHECK(a.standard_deviation == Approx(b.standard_deviation));
  CHECK(b.plane_entropy_bits.size() == 2);
}

TEST_CASE("moments of nothing are zeros") {
  const ValueSummary none = Moments().Finish();
  CHECK(none.values == 0);
  CHECK(std::isnan(none.mean));
  CHECK(std::isnan(none.standard_deviation));
  Moments nan;
  nan.Add(std::numeric_limits<double>::quiet_NaN());
  CHECK(std::isnan(nan.Finish().max));
}

TEST_CASE("histograms count every byte and every word at any alignment") {
  std::mt19937 random(2);
  Bytes bytes(1000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 7);
  for (const size_t from : {0u, 1u, 3u}) {
    for (const size_t size : {0u, 1u, 7u, 8u, 9u, 501u, 990u}) {
      std::vector<uint64_t> counts(256), words(65536), expected(256), expected_words(65536);
      for (size_t i = 0; i < size; ++i) ++expected[static_cast<size_t>(bytes[from + i])];
      for (size_t i = 0; i + 1 < size; i += 2) {
        ++expected_words[LoadLE<uint16_t>(bytes.data() + from + i)];
      }
      CountBytes(bytes.data() + from, size, counts.data());
      CountWords(bytes.data() + from, size / 2, words.data());
      CHECK(counts == expected);
      CHECK(words == expected_words);
    }
  }
}

}  // namespace kv::moments_test
