// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/select.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "lib/core/snapshot/layout.h"

namespace kv::select_test {
namespace {

std::vector<uint16_t> Iota(size_t count) {
  std::vector<uint16_t> values(count);
  std::iota(values.begin(), values.end(), uint16_t{0});
  return values;
}

const std::byte* Data(const std::vector<uint16_t>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

void CheckAllSlices(const KvTensor& tensor) {
  const uint64_t tokens = tensor.tokens();
  for (uint64_t begin = 0; begin <= tokens; ++begin) {
    for (uint64_t count = 0; begin + count <= tokens; ++count) {
      const KvTensor slice = SliceTokens(tensor, begin, count);
      REQUIRE(slice.tokens() == count);
      REQUIRE(Gather(slice, 0, count, Order::kTokenHeadDim) ==
              Gather(tensor, begin, count, Order::kTokenHeadDim));
    }
  }
}

}  // namespace

TEST_CASE("a slice gathers what the same tokens of the whole gather", "[snapshot]") {
  const auto values = Iota(11 * 3 * 4);
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken}) {
    CheckAllSlices(ContiguousTensor(Data(values), DType::kF16, 11, 3, 4, order));
  }
}

TEST_CASE("tiled tokens are sliced at any border", "[snapshot]") {
  // Makes two pieces of 10 and 6 tokens in tiles of 4 tokens, [tile][dim][token in tile].
  const auto values = Iota(24 * 4);
  KvTensor tensor = ContiguousTensor(Data(values), DType::kF16, 10, 1, 4, Order::kTokenHeadDim);
  StridedPiece piece = tensor.pieces[0];
  piece.token = {2, 4, 32};
  piece.dim = {8};
  tensor.pieces[0] = piece;
  piece.data += 3 * 32;
  piece.tokens = 6;
  tensor.pieces.push_back(piece);
  CheckAllSlices(tensor);
}

TEST_CASE("selecting layers and tokens keeps their cells and refuses what is not there",
          "[snapshot]") {
  const auto values = Iota(8 * 2);
  Snapshot snapshot;
  for (const uint32_t layer : {0u, 1u, 5u}) {
    snapshot.layers.push_back(
        {.index = layer,
         .k = ContiguousTensor(Data(values), DType::kF16, 8, 1, 2, Order::kTokenHeadDim)});
  }
  snapshot.cell_groups.push_back({});
  for (int64_t position = 0; position < 8; ++position)
    snapshot.cell_groups[0].cells.push_back({.position = position});

  const Snapshot part =
      Select(snapshot, {.layers = std::vector<uint32_t>{0, 5}, .tokens = {{2, 5}}});
  REQUIRE(part.layers.size() == 2);
  CHECK(part.layers[1].index == 5);
  CHECK(part.layers[1].k.tokens() == 3);
  REQUIRE(part.cell_groups[0].cells.size() == 3);
  CHECK(part.cell_groups[0].cells[0].position == 2);
  // Several ranges keep their tokens in order; a range is cut at the end of the cache.
  const Snapshot parts = Select(snapshot, {.tokens = {{0, 2}, {5, 6}, {7, 100}}});
  CHECK(parts.layers[0].k.tokens() == 4);
  REQUIRE(parts.cell_groups[0].cells.size() == 4);
  CHECK(parts.cell_groups[0].cells[2].position == 5);
  Bytes last = Gather(snapshot.layers[0].k, 5, 1, Order::kTokenHeadDim);
  const Bytes seventh = Gather(snapshot.layers[0].k, 7, 1, Order::kTokenHeadDim);
  last.insert(last.end(), seventh.begin(), seventh.end());
  CHECK(Gather(parts.layers[0].k, 2, 2, Order::kTokenHeadDim) == last);
  CHECK_THROWS_AS(Select(snapshot, {.layers = std::vector<uint32_t>{2}}), Error);
  CHECK_THROWS_AS(Select(snapshot, {.tokens = {{8, UINT64_MAX}}}), Error);
}

}  // namespace kv::select_test
