// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/name_table.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kv::name_table_test {

using Repeats = std::vector<std::pair<uint32_t, uint32_t>>;

// Counts below, at and above the number of names that are prefetched.
TEST_CASE("a table filled at once finds every name and tells every repeated one") {
  const auto count = GENERATE(0u, 1u, 5u, 16u, 17u, 5000u);
  std::vector<std::string> names;
  Repeats expected;
  for (uint32_t i = 0; i < count; ++i) {
    const bool repeats = i > 0 && i % 7 == 0;
    names.push_back(repeats ? names[i / 2] : "layers." + std::to_string(i));
    if (!repeats) continue;
    uint32_t first = 0;
    while (names[first] != names[i]) ++first;
    expected.emplace_back(i, first);
  }
  const auto name_at = [&](uint32_t i) -> const std::string& { return names[i]; };
  NameTable table;
  Repeats found;
  table.InsertAll(count, name_at,
                  [&](uint32_t i, uint32_t earlier) { found.emplace_back(i, earlier); });
  CHECK(found == expected);
  size_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const bool repeats = next < expected.size() && expected[next].first == i;
    CHECK(table.Find(names[i], name_at) == (repeats ? expected[next++].second : i));
  }
  CHECK_FALSE(table.Find("absent", name_at));
}

TEST_CASE("a table filled one by one refuses a name that it has") {
  std::vector<std::string> names;
  const auto name_at = [&](uint32_t i) -> const std::string& { return names[i]; };
  NameTable table;
  for (uint32_t i = 0; i < 3000; ++i) {
    names.push_back(std::to_string(i));
    REQUIRE(table.Insert(names[i], i, name_at));
    CHECK_FALSE(table.Insert(names[i / 2], i + 1, name_at));
  }
  for (uint32_t i = 0; i < 3000; ++i) CHECK(table.Find(names[i], name_at) == i);
}

}  // namespace kv::name_table_test
