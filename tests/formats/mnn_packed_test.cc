// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "formats/mnn/mnn.h"
#include "lib/core/snapshot/layout.h"

namespace kv::mnn::mnn_packed_test {
namespace {

constexpr uint16_t kPadding = 0xdead;

// Returns logical values [token][head][dim]; none has the value of the padding.
std::vector<uint16_t> Values(const PackGeometry& g, uint32_t heads) {
  std::vector<uint16_t> values(g.tokens * heads * g.head_dim);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i % 0xdead);
  return values;
}

uint64_t Ceil(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Packs as documented: five nested axes in storage order, with elements appended in that order.
std::vector<uint16_t> PackInOrder(const PackGeometry& g, uint32_t heads, bool value,
                                  const std::vector<uint16_t>& values) {
  std::vector<uint16_t> packed;
  const auto element = [&](uint64_t token, uint32_t head, uint64_t dim) {
    const bool real = token < g.tokens && dim < g.head_dim;
    packed.push_back(real ? values[(token * heads + head) * g.head_dim + dim] : kPadding);
  };
  for (uint32_t head = 0; head < heads; ++head) {
    if (value) {
      for (uint64_t block = 0; block < Ceil(g.tokens, g.flash_block); ++block)
        for (uint64_t group = 0; group < Ceil(g.head_dim, g.pack_h); ++group)
          for (uint64_t tile = 0; tile < Ceil(g.flash_block, g.pack_l); ++tile)
            for (uint64_t h = 0; h < g.pack_h; ++h)
              for (uint64_t l = 0; l < g.pack_l; ++l) {
                const uint64_t in_block = tile * g.pack_l + l;
                // A lane past the block is padding, not the next block's token.
                const uint64_t token =
                    in_block < g.flash_block ? block * g.flash_block + in_block : g.tokens;
                element(token, head, group * g.pack_h + h);
              }
    } else {
      for (uint64_t group = 0; group < Ceil(g.tokens, g.pack_h); ++group)
        for (uint64_t tile = 0; tile < Ceil(g.head_dim, g.pack_l); ++tile)
          for (uint64_t h = 0; h < g.pack_h; ++h)
            for (uint64_t l = 0; l < g.pack_l; ++l)
              element(group * g.pack_h + h, head, tile * g.pack_l + l);
    }
  }
  return packed;
}

void CheckPacking(const PackGeometry& g, uint32_t heads) {
  const std::vector<uint16_t> values = Values(g, heads);
  for (const bool value : {false, true}) {
    INFO((value ? "V " : "K ") << g.tokens << " tokens, head_dim " << g.head_dim << ", hP "
                               << g.pack_h << ", lP " << g.pack_l << ", FA " << g.flash_block);
    const std::vector<uint16_t> packed = PackInOrder(g, heads, value, values);
    const uint64_t head_elements = value ? ValueElements(g) : KeyElements(g);
    REQUIRE(packed.size() == heads * head_elements);

    for (uint64_t t = 0; t < g.tokens; ++t) {
      for (uint64_t d = 0; d < g.head_dim; ++d) {
        const uint64_t index = value ? ValueIndex(g, t, d) : KeyIndex(g, t, d);
        REQUIRE(index < head_elements);
        REQUIRE(packed[index] == values[t * heads * g.head_dim + d]);
      }
    }
    const auto* data = reinterpret_cast<const std::byte*>(packed.data());
    const KvTensor tensor = value ? PackedValues(data, DType::kF16, g, heads, head_elements * 2)
                                  : PackedKeys(data, DType::kF16, g, heads, head_elements * 2);
    const auto* expected = reinterpret_cast<const std::byte*>(values.data());
    REQUIRE(Gather(tensor, 0, g.tokens, Order::kTokenHeadDim) ==
            Bytes(expected, expected + values.size() * 2));
  }
}

}  // namespace

TEST_CASE("packing by the written layout and reading it is the identity for any geometry",
          "[mnn]") {
  std::mt19937 random(7);
  const auto draw = [&](uint64_t least, uint64_t most) {
    return least + random() % (most - least + 1);
  };
  for (int round = 0; round < 300; ++round) {
    const PackGeometry g{.tokens = draw(1, 150),
                         .head_dim = draw(1, 40),
                         .pack_h = draw(1, 24),
                         .pack_l = draw(1, 9),
                         .flash_block = draw(1, 200)};
    CheckPacking(g, static_cast<uint32_t>(draw(1, 3)));
  }
}

TEST_CASE("the packings of real MNN CPUs read back", "[mnn]") {
  for (const uint64_t tokens : {1, 63, 64, 65, 130}) {
    for (const auto& [hP, lP] : {std::pair{4, 1}, {8, 1}, {8, 2}, {16, 4}, {12, 8}}) {
      for (const uint64_t flash : {uint64_t{64}, tokens + 64}) {
        CheckPacking({tokens, 128, static_cast<uint64_t>(hP), static_cast<uint64_t>(lP), flash}, 2);
      }
    }
  }
}

TEST_CASE("the largest index in use is that of the last token's last dim", "[mnn]") {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    const PackGeometry g{.tokens = 1 + random() % 90,
                         .head_dim = 1 + random() % 20,
                         .pack_h = 1 + random() % 12,
                         .pack_l = 1 + random() % 6,
                         .flash_block = 1 + random() % 70};
    uint64_t key = 0, value = 0;
    for (uint64_t t = 0; t < g.tokens; ++t) {
      for (uint64_t d = 0; d < g.head_dim; ++d) {
        key = std::max(key, KeyIndex(g, t, d));
        value = std::max(value, ValueIndex(g, t, d));
      }
    }
    REQUIRE(key == KeyIndex(g, g.tokens - 1, g.head_dim - 1));
    REQUIRE(value == ValueIndex(g, g.tokens - 1, g.head_dim - 1));
  }
}

TEST_CASE("pack sizes that multiply past 64 bits are refused", "[mnn]") {
  const uint64_t huge = uint64_t{1} << 31;
  CHECK_THROWS_AS(KeyElements({huge + 1, huge + 1, huge, huge, 64}), Error);
  CHECK_THROWS_AS(ValueElements({huge + 1, huge + 1, huge, huge, huge}), Error);
  CHECK_NOTHROW(KeyElements({1, 1, huge, 1, 64}));
}

}  // namespace kv::mnn::mnn_packed_test
