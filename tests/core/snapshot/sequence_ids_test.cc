// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv::sequence_ids_test {
namespace {

TEST_CASE("ids behave as a list, whatever their number", "[snapshot]") {
  for (size_t count : {0, 1, 2, 3, 4, 5, 8, 9, 300}) {
    std::vector<int32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 7);
    const SequenceIds at_once(ids);
    SequenceIds grown;
    for (int32_t id : ids) grown.push_back(id);
    CHECK(at_once == ids);
    CHECK(grown == at_once);
    CHECK(grown.size() == count);
    CHECK(grown.empty() == (count == 0));

    SequenceIds copy = grown;
    copy.push_back(-1);
    CHECK(grown == ids);
    CHECK_FALSE(copy == grown);
    copy = grown;
    CHECK(copy == ids);
    copy = SequenceIds{1, 2, 3};
    CHECK(copy == std::vector<int32_t>{1, 2, 3});
    SequenceIds moved = std::move(grown);
    CHECK(moved == ids);
    moved.push_back(5);
    CHECK(moved.size() == count + 1);
    CHECK(*(moved.end() - 1) == 5);
  }
  CHECK(sizeof(SequenceIds) == 16);
}

}  // namespace
}  // namespace kv::sequence_ids_test
