// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/kernels/similarity.h"
#include "tests/support/targets.h"

namespace kv::hamming_test {

TEST_CASE("the nearest signature is the reference's, the last of several", "[hamming]") {
  std::mt19937_64 random(1);
  for (const size_t words : {1, 2, 3}) {
    for (const size_t count : {1, 2, 7, 8, 9, 63, 200}) {
      for (size_t first = 0; first < 3; ++first) {
        // There are few different signatures, so that several are equally near.
        const size_t stride = count + 5;
        std::vector<uint64_t> signatures(words * stride), query(words);
        const uint64_t few[] = {0, UINT64_MAX, random(), random()};
        for (uint64_t& signature : signatures) signature = few[random() % 4];
        for (uint64_t& word : query) word = few[random() % 4] ^ (random() % 2 << 63);
        const NearestSignature expected =
            ref::FindNearest(signatures.data() + first, stride, words, count, query.data());
        REQUIRE(expected.age >= 1);
        REQUIRE(expected.age <= count);
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << ", " << count << " of " << words << " words from " << first);
          const NearestSignature got =
              FindNearest(signatures.data() + first, stride, words, count, query.data());
          REQUIRE(got.distance == expected.distance);
          REQUIRE(got.age == expected.age);
        });
      }
    }
  }
  const uint64_t same[] = {5, 7, 7, 5, 7};
  const uint64_t seven = 7;
  CHECK(ref::FindNearest(same, 5, 1, 5, &seven).age == 1);
  CHECK(ref::FindNearest(same, 5, 1, 4, &seven).age == 2);
}

}  // namespace kv::hamming_test
