// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "lib/core/base/half.h"
#include "lib/core/weights/weights.h"

namespace kv::values_test {
namespace {

template <typename T>
Bytes Round(DType from, const std::vector<T>& values, DType to, RoundingCounts* counts = nullptr) {
  return RoundValues(
      ContiguousView(from, {values.size()}, reinterpret_cast<const std::byte*>(values.data())), to,
      counts);
}

uint16_t First16(const Bytes& bytes) { return LoadLE<uint16_t>(bytes.data()); }

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("values are rounded to nearest even, once, and overflow to infinity") {
  CHECK(First16(Round<float>(DType::kF32, {65519.996f}, DType::kF16)) == 0x7bff);
  CHECK(First16(Round<float>(DType::kF32, {65520.0f}, DType::kF16)) == 0x7c00);
  CHECK(First16(Round<float>(DType::kF32, {1 + 0x1p-11f}, DType::kF16)) == 0x3c00);
  CHECK(First16(Round<float>(DType::kF32, {1 + 3 * 0x1p-11f}, DType::kF16)) == 0x3c02);
  CHECK(First16(Round<float>(DType::kF32, {std::numeric_limits<float>::max()}, DType::kBF16)) ==
        0x7f80);
}

TEST_CASE("fp64 goes through fp32, so it is rounded twice") {
  CHECK(First16(Round<double>(DType::kF64, {1 + 0x1p-11 + 0x1p-40}, DType::kF16)) == 0x3c00);
  CHECK(First16(Round<double>(DType::kF64, {1e300}, DType::kBF16)) == 0x7f80);
}

TEST_CASE("NaN has the bits that torch on x86 gives it") {
  const std::vector<uint32_t> nans = {0x7fc00000, 0xffc00000, 0x7fc12345};
  const Bytes half = Round<uint32_t>(DType::kF32, nans, DType::kF16);
  CHECK(LoadLE<uint16_t>(half.data()) == 0x7e00);
  CHECK(LoadLE<uint16_t>(half.data() + 2) == 0xfe00);
  CHECK(LoadLE<uint16_t>(half.data() + 4) == 0x7e00);
  const Bytes brain = Round<uint32_t>(DType::kF32, nans, DType::kBF16);
  for (size_t i = 0; i < nans.size(); ++i) CHECK(LoadLE<uint16_t>(brain.data() + 2 * i) == 0xffff);
  CHECK(First16(Round<uint16_t>(DType::kF16, {0xfe00}, DType::kBF16)) == 0x7fc0);
  SECTION("and none is touched when the type stays") {
    CHECK(First16(Round<uint16_t>(DType::kF16, {0x7c01}, DType::kF16)) == 0x7c01);
    CHECK(First16(Round<uint16_t>(DType::kBF16, {0xff81}, DType::kBF16)) == 0xff81);
  }
}

TEST_CASE("each 16-bit pattern survives a way through fp32") {
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7c00) != 0x7c00 || (bits & 0x3ff) == 0)
      all.push_back(static_cast<uint16_t>(bits));
  }
  const Bytes wide = Round<uint16_t>(DType::kF16, all, DType::kF32);
  const Bytes back =
      RoundValues(ContiguousView(DType::kF32, {all.size()}, wide.data()), DType::kF16);
  CHECK(std::memcmp(back.data(), all.data(), back.size()) == 0);
}

TEST_CASE("rounding counts what it did") {
  RoundingCounts counts;
  Round<float>(DType::kF32, {1.0f, 0.1f, 1e6f, 1e-9f, kInf, std::nanf(""), -0.0f}, DType::kF16,
               &counts);
  CHECK(counts.values == 7);
  CHECK(counts.nan == 1);
  CHECK(counts.infinite == 1);
  CHECK(counts.overflowed == 1);
  CHECK(counts.flushed == 1);
  CHECK(counts.changed == 3);
}

TEST_CASE("a strided view is written in C order") {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  TensorView view =
      ContiguousView(DType::kF32, {3, 2}, reinterpret_cast<const std::byte*>(values.data()));
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
  const Bytes out = RoundValues(view, DType::kF32);
  const float expected[] = {0, 2, 4, 1, 3, 5};
  CHECK(std::memcmp(out.data(), expected, sizeof(expected)) == 0);
}

TEST_CASE("integers become floats, other types are refused") {
  CHECK(First16(Round<int64_t>(DType::kI64, {65520}, DType::kF16)) == 0x7c00);
  CHECK(First16(Round<int8_t>(DType::kI8, {-3}, DType::kBF16)) == F32ToBF16(-3.0f));
  CHECK_THROWS_AS(Round<uint8_t>(DType::kF8E4M3, {0}, DType::kF16), Error);
  CHECK_THROWS_AS(Round<float>(DType::kF32, {0}, DType::kI8), Error);
}

}  // namespace kv::values_test
