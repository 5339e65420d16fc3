// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/kernels/similarity.h"
#include "tests/support/targets.h"

namespace kv::dot8_test {
namespace {

struct Extents {
  size_t rows, queries, columns;
};

void CompareWithReference(const Extents& extents, size_t misalignment, int least, int most) {
  std::mt19937 random(static_cast<uint32_t>(extents.columns + misalignment));
  std::uniform_int_distribution<int> value(least, most);
  std::vector<int8_t> rows(extents.rows * extents.columns + misalignment);
  std::vector<int8_t> queries(extents.queries * extents.columns + misalignment);
  for (int8_t& one : rows) one = static_cast<int8_t>(value(random));
  for (int8_t& one : queries) one = static_cast<int8_t>(value(random));
  const size_t products = extents.rows * extents.queries;
  std::vector<int32_t> expected(products);
  ref::DotProducts8(rows.data() + misalignment, extents.rows, queries.data() + misalignment,
                    extents.queries, extents.columns, expected.data());
  test::ForEachTarget([&](const std::string& target) {
    INFO(target << ": " << extents.rows << " rows, " << extents.queries << " queries, "
                << extents.columns << " columns, " << misalignment << " bytes off");
    constexpr int32_t kUntouched = 0x5a5a5a5a;
    std::vector<int32_t> got(products + 1, kUntouched);
    DotProducts8(rows.data() + misalignment, extents.rows, queries.data() + misalignment,
                 extents.queries, extents.columns, got.data());
    REQUIRE(got.back() == kUntouched);
    got.pop_back();
    REQUIRE(got == expected);
  });
}

}  // namespace

TEST_CASE("dot products of 8-bit rows are the reference's", "[dot8]") {
  // Sizes around the kernel's pairs, vectors, tiles of 16 queries and slabs of 512 columns.
  for (const size_t columns : {0, 1, 2, 15, 16, 17, 63, 64, 511, 512, 513, 1025}) {
    for (const size_t queries : {1, 15, 16, 17, 33}) {
      for (const size_t rows : {1, 2, 3, 4, 5, 9})
        CompareWithReference({rows, queries, columns}, columns % 3, -31, 31);
    }
  }
  for (size_t misalignment = 0; misalignment < 16; ++misalignment)
    CompareWithReference({5, 18, 77}, misalignment, -128, 127);
}

TEST_CASE("dot products of the longest 8-bit rows do not overflow", "[dot8]") {
  CompareWithReference({2, 1, kMaxDotColumns}, 1, -128, -128);
  const std::vector<int8_t> least(kMaxDotColumns, -128);
  int32_t product = 0;
  DotProducts8(least.data(), 1, least.data(), 1, least.size(), &product);
  CHECK(product == 16384 * 131071);
}

}  // namespace kv::dot8_test
