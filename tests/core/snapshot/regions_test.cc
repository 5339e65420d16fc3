// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/layout.h"

namespace kv::regions_test {
namespace {

Snapshot OneFile(uint64_t bytes) {
  Snapshot snapshot;
  snapshot.source.files.push_back({"file", FileSource::FromBytes(Bytes(bytes), "file")});
  return snapshot;
}

const std::byte* Data(const Snapshot& snapshot) {
  return snapshot.source.files[0].data->bytes().data();
}

}  // namespace

TEST_CASE("stored ranges become regions where no piece lies", "[snapshot]") {
  Snapshot snapshot = OneFile(100);
  // Two rows of two f16 values at 20 and at 40; bytes 10..90 are f16 elements.
  KvTensor k = ContiguousTensor(Data(snapshot) + 20, DType::kF16, 2, 1, 2, Order::kTokenHeadDim);
  k.pieces.push_back(k.pieces[0]);
  k.pieces[1].data += 20;
  snapshot.layers.push_back({.index = 3, .k = k});
  snapshot.stored.push_back({Data(snapshot) + 10, 80, DType::kF16});
  const std::vector<Region> regions = FindRegions(snapshot);
  REQUIRE(regions.size() == 5);
  const uint64_t expected[][2] = {{10, 10}, {20, 8}, {28, 12}, {40, 8}, {48, 42}};
  for (size_t i = 0; i < 5; ++i) {
    CHECK(regions[i].offset == expected[i][0]);
    CHECK(regions[i].size == expected[i][1]);
    CHECK((regions[i].order == Order::kStorage) == (i % 2 == 0));
  }
}

TEST_CASE("stored ranges are cut to what pieces leave, whatever the pieces are", "[snapshot]") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Snapshot snapshot = OneFile(400);
    std::vector<char> owner(400, '.');
    snapshot.layers.push_back({});
    KvTensor& k = snapshot.layers[0].k;
    k = {.dtype = DType::kF32, .heads = 1, .head_dim = 1};
    for (uint64_t at = 4 * (random() % 20); at < 380; at += 4 * (2 + random() % 25)) {
      k.pieces.push_back({Data(snapshot) + at, 2, {4}, {4}, {4}});
      std::fill_n(owner.begin() + static_cast<long>(at), 8, 'p');
    }
    const uint64_t begin = 4 * (random() % 90), size = 4 * (1 + random() % ((400 - begin) / 4));
    snapshot.stored.push_back(
        {.data = Data(snapshot) + begin, .bytes = size, .dtype = DType::kF32});
    for (uint64_t i = begin; i < begin + size; ++i) {
      if (owner[i] == '.') owner[i] = 's';
    }
    std::vector<char> found(400, '.');
    for (const Region& region : FindRegions(snapshot)) {
      for (uint64_t i = region.offset; i < region.offset + region.size; ++i) {
        REQUIRE(found[i] == '.');
        found[i] = region.order == Order::kStorage ? 's' : 'p';
      }
    }
    REQUIRE(found == owner);
  }
}

TEST_CASE("pieces that share bytes are refused", "[snapshot]") {
  Snapshot snapshot = OneFile(64);
  for (const uint64_t at : {0, 8}) {
    snapshot.layers.push_back(
        {.k = ContiguousTensor(Data(snapshot) + at, DType::kF16, 4, 1, 2, Order::kTokenHeadDim)});
  }
  CHECK_THROWS_AS(FindRegions(snapshot), Error);
}

}  // namespace kv::regions_test
