// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/dynamo/kvtc.h"

#include <catch2/catch.hpp>

#include "tests/support/refusal.h"

namespace kv::dynamo {
namespace {

constexpr uint64_t kRows = 3, kComponents = 24;
const std::vector<Range> kRanges = {{0, 4, 0}, {4, 16, 4}, {16, 24, 2}};

std::vector<float> Coefficients() {
  std::vector<float> values(kRows * kComponents);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) / 8 - 5;
  return values;
}

Bytes Sound() { return WriteBuffer(Coefficients(), kRows, kComponents, kRanges, Fp8Path::kSm89); }

Finding Refusal(const Bytes& buffer, uint64_t rows = kRows, uint64_t components = kComponents) {
  return test::FindingOf([&] { ReadBuffer(buffer, rows, components); });
}

template <typename T>
Bytes With(size_t at, T value) {
  Bytes buffer = Sound();
  StoreLE(buffer.data() + at, value);
  return buffer;
}

Finding WriteRefusal(const std::vector<Range>& ranges) {
  return test::FindingOf(
      [&] { WriteBuffer(Coefficients(), kRows, kComponents, ranges, Fp8Path::kSm89); });
}

}  // namespace

TEST_CASE("dynamo: a buffer comes back, and a second round keeps it") {
  const Buffer once = ReadBuffer(Sound(), kRows, kComponents);
  CHECK(once.ranges == kRanges);
  const Bytes again = WriteBuffer(once.values, kRows, kComponents, kRanges, Fp8Path::kSm89);
  CHECK(again == Sound());
}

TEST_CASE("dynamo: forged buffers are refused before anything is written") {
  // Fields of the first header: type, bits, begin, end, bytes of codes and of extremes.
  CHECK(Refusal(With<int32_t>(0, 2)) == Finding::kBadField);
  CHECK(Refusal(With<int32_t>(0, -1)) == Finding::kBadField);
  CHECK(Refusal(With<int32_t>(4, 3)) == Finding::kBadField);
  CHECK(Refusal(With<uint64_t>(8, 4)) == Finding::kBadField);  // empty
  // The group ends before it begins.
  CHECK(Refusal(With<uint64_t>(8, UINT64_MAX)) == Finding::kBadField);
  CHECK(Refusal(With<uint64_t>(16, UINT64_MAX)) == Finding::kBadField);
  CHECK(Refusal(With<uint64_t>(16, 5)) == Finding::kSizeMismatch);
  CHECK(Refusal(With<uint64_t>(24, UINT64_MAX)) == Finding::kSizeMismatch);
  CHECK(Refusal(With<uint64_t>(32, 8)) == Finding::kSizeMismatch);
  Bytes cut = Sound();
  cut.pop_back();
  CHECK(Refusal(cut) == Finding::kTruncated);
  CHECK(Refusal(Sound(), kRows + 1) == Finding::kSizeMismatch);
  // The groups do not cover the last component.
  CHECK(Refusal(Sound(), kRows, kComponents + 1) == Finding::kBadField);
  CHECK(Refusal({}) == Finding::kBadField);
  Bytes twice = Sound();
  twice.insert(twice.end(), twice.begin(), twice.begin() + 40 + 3 * 4);
  CHECK(Refusal(twice) == Finding::kBadField);
}

TEST_CASE("dynamo: ranges that its kernels would write wrong are not written") {
  // 23 codes of 4 bits are not whole bytes.
  CHECK(WriteRefusal({{0, 23, 4}, {23, 24, 0}}) == Finding::kBadField);
  CHECK(WriteRefusal({{0, 16, 0}}) == Finding::kBadField);
  CHECK(WriteRefusal({{0, 16, 0}, {15, 24, 0}}) == Finding::kBadField);
  CHECK(WriteRefusal({{0, 24, 3}}) == Finding::kBadField);
  CHECK(WriteRefusal({{0, 25, 8}}) == Finding::kBadField);
}

}  // namespace kv::dynamo
