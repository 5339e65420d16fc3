// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "formats/mnn/mnn.h"

namespace kv::mnn::mnn_join_test {

using Ranges = std::vector<TokenRange>;
using Parts = std::vector<JoinedRange>;

TEST_CASE("updates that follow one another join without remarks, in any order of files", "[mnn]") {
  const Ranges updates = {{71, 72}, {0, 70}, {70, 71}};
  const Joined joined = JoinByPosition(updates);
  CHECK(joined.ranges == Parts{{1, 0, 70}, {2, 70, 71}, {0, 71, 72}});
  CHECK(joined.gaps.empty());
  CHECK(joined.overlaps.empty());
}

TEST_CASE("a capped update leaves a gap, a first token above zero does not", "[mnn]") {
  const Joined joined = JoinByPosition(Ranges{{5, 37}, {75, 76}});
  CHECK(joined.ranges == Parts{{0, 5, 37}, {1, 75, 76}});
  CHECK(joined.gaps == Ranges{{37, 75}});
}

TEST_CASE("after a compaction the update that begins later wins", "[mnn]") {
  // A prompt of 70 tokens and two decoded ones come first; then the cache was cut to 40 and two
  // more were decoded.
  const Joined joined = JoinByPosition(Ranges{{0, 70}, {70, 71}, {71, 72}, {40, 41}, {41, 42}});
  CHECK(joined.ranges ==
        Parts{{0, 0, 40}, {3, 40, 41}, {4, 41, 42}, {0, 42, 70}, {1, 70, 71}, {2, 71, 72}});
  CHECK(joined.gaps.empty());
  CHECK(joined.overlaps == Ranges{{40, 42}});
}

TEST_CASE("of updates that begin together the longer one wins", "[mnn]") {
  const Joined joined = JoinByPosition(Ranges{{0, 9}, {0, 5}});
  CHECK(joined.ranges == Parts{{0, 0, 9}});
  CHECK(joined.overlaps == Ranges{{0, 5}});
}

TEST_CASE("joining agrees with painting the updates one by one", "[mnn]") {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    Ranges updates;
    const size_t count = 1 + random() % 12;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t begin = random() % 40;
      updates.push_back({begin, begin + 1 + random() % 15});
    }
    // Paints in the order of (begin, end): the last one wins.
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(updates[a].begin, updates[a].end) <
             std::pair(updates[b].begin, updates[b].end);
    });
    std::map<uint64_t, size_t> painted;
    std::map<uint64_t, int> layers_of_paint;
    for (const size_t i : order) {
      for (uint64_t t = updates[i].begin; t < updates[i].end; ++t) {
        painted[t] = i;
        ++layers_of_paint[t];
      }
    }
    const Joined joined = JoinByPosition(updates);
    std::map<uint64_t, size_t> found;
    uint64_t previous_end = 0;
    for (const JoinedRange& range : joined.ranges) {
      REQUIRE(range.begin >= previous_end);
      REQUIRE(range.begin < range.end);
      previous_end = range.end;
      for (uint64_t t = range.begin; t < range.end; ++t) found[t] = range.update;
    }
    REQUIRE(found == painted);
    const auto in = [](const Ranges& ranges, uint64_t t) {
      return std::any_of(ranges.begin(), ranges.end(),
                         [&](const TokenRange& r) { return r.begin <= t && t < r.end; });
    };
    for (uint64_t t = painted.begin()->first; t < painted.rbegin()->first; ++t) {
      REQUIRE(in(joined.gaps, t) == (painted.count(t) == 0));
      REQUIRE(in(joined.overlaps, t) == (layers_of_paint[t] > 1));
    }
  }
}

}  // namespace kv::mnn::mnn_join_test
