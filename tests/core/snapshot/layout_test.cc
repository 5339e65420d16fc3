// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/layout.h"

#include <catch2/catch.hpp>
#include <random>

#include "formats/registry.h"
#include "tests/support/llama_builder.h"

namespace kv::layout_test {
namespace {

constexpr Order kOrders[] = {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken};

Bytes Random(size_t size, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Returns the offset of unit (t, h, u) in a contiguous tensor, in units.
uint64_t IndexOf(Order order, uint64_t tokens, uint64_t heads, uint64_t units, uint64_t t,
                 uint64_t h, uint64_t u) {
  switch (order) {
    case Order::kTokenHeadDim:
      return (t * heads + h) * units + u;
    case Order::kHeadTokenDim:
      return (h * tokens + t) * units + u;
    default:
      return (h * units + u) * tokens + t;
  }
}

struct Shape {
  DType dtype;
  uint64_t tokens;
  uint32_t heads, head_dim;
};

// Shapes at the tile edges of the copy kernel, axes of length 1, and units of 1, 2, 4, 8, 18 and 34
// bytes.
const Shape kShapes[] = {
    {DType::kF16, 33, 3, 31}, {DType::kF16, 1, 4, 8},    {DType::kF16, 7, 1, 5},
    {DType::kF16, 5, 3, 1},   {DType::kU8, 64, 2, 65},   {DType::kF32, 32, 2, 32},
    {DType::kF64, 9, 2, 3},   {DType::kQ8_0, 35, 2, 96}, {DType::kQ4_0, 3, 5, 32},
};

TEST_CASE("gathering equals unit by unit copying, for all orders and parts", "[layout]") {
  for (const Shape& shape : kShapes) {
    for (const Order from : kOrders) {
      const DTypeInfo& info = Info(shape.dtype);
      const uint64_t units = shape.head_dim / info.block_elements;
      const Bytes data = Random(shape.tokens * shape.heads * units * info.block_bytes);
      const KvTensor tensor = ContiguousTensor(data.data(), shape.dtype, shape.tokens, shape.heads,
                                               shape.head_dim, from);
      CHECK(tensor.bytes() == data.size());
      for (const Order to : kOrders) {
        INFO(info.name << " " << Name(from) << " to " << Name(to));
        const uint64_t begin = shape.tokens / 3, count = shape.tokens - begin;
        const uint32_t head = shape.heads / 2, heads = shape.heads - head;
        Bytes got(heads * count * units * info.block_bytes);
        Gather(tensor, begin, count, head, heads, to, got);
        for (uint64_t t = 0; t < count; ++t) {
          for (uint32_t h = 0; h < heads; ++h) {
            for (uint64_t u = 0; u < units; ++u) {
              const std::byte* a =
                  data.data() + info.block_bytes * IndexOf(from, shape.tokens, shape.heads, units,
                                                           begin + t, head + h, u);
              const std::byte* b =
                  got.data() + info.block_bytes * IndexOf(to, count, heads, units, t, h, u);
              REQUIRE(std::equal(a, a + info.block_bytes, b));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("reordering there and back changes nothing, and agrees with gathering", "[layout]") {
  for (const Shape& shape : kShapes) {
    const DTypeInfo& info = Info(shape.dtype);
    const uint64_t units = shape.head_dim / info.block_elements;
    const Bytes data = Random(shape.tokens * shape.heads * units * info.block_bytes, 5);
    for (const Order from : kOrders) {
      for (const Order to : kOrders) {
        Bytes there(data.size()), back(data.size());
        Reorder(data, from, there, to, shape.tokens, shape.heads, units, info.block_bytes);
        Reorder(there, to, back, from, shape.tokens, shape.heads, units, info.block_bytes);
        CHECK(back == data);
        const KvTensor tensor = ContiguousTensor(data.data(), shape.dtype, shape.tokens,
                                                 shape.heads, shape.head_dim, from);
        CHECK(there == Gather(tensor, 0, shape.tokens, to));
      }
    }
  }
}

TEST_CASE("pieces of different orders and packed tiles gather as one tensor", "[layout]") {
  // The pieces hold 5 rows as stored, 3 transposed, and 6 in tiles of 4 tokens by 2 dims with
  // padding.
  constexpr uint32_t kHeads = 2, kDim = 6;
  const auto value = [](uint64_t t, uint64_t h, uint64_t d) {
    return static_cast<uint16_t>(t * 100 + h * 10 + d);
  };
  std::vector<uint16_t> rows(5 * kHeads * kDim), columns(3 * kHeads * kDim), tiles(kHeads * 3 * 16);
  for (uint64_t h = 0; h < kHeads; ++h) {
    for (uint64_t d = 0; d < kDim; ++d) {
      for (uint64_t t = 0; t < 5; ++t) rows[(t * kHeads + h) * kDim + d] = value(t, h, d);
      for (uint64_t t = 0; t < 3; ++t) columns[(h * kDim + d) * 3 + t] = value(5 + t, h, d);
      for (uint64_t t = 0; t < 6; ++t)
        tiles[h * 48 + (d / 2) * 16 + (t / 4) * 8 + (t % 4) * 2 + d % 2] = value(8 + t, h, d);
    }
  }
  const auto bytes = [](const std::vector<uint16_t>& v) {
    return reinterpret_cast<const std::byte*>(v.data());
  };
  KvTensor tensor =
      ContiguousTensor(bytes(rows), DType::kF16, 5, kHeads, kDim, Order::kTokenHeadDim);
  tensor.pieces.push_back(
      ContiguousTensor(bytes(columns), DType::kF16, 3, kHeads, kDim, Order::kHeadDimToken)
          .pieces[0]);
  tensor.pieces.push_back({bytes(tiles), 6, {4, 4, 16}, {96}, {2, 2, 32}});
  CHECK(tensor.tokens() == 14);
  for (const Order order : kOrders) {
    for (const uint64_t begin : {0, 4, 7, 9}) {
      const uint64_t count = 13 - begin;
      const Bytes got = Gather(tensor, begin, count, order);
      for (uint64_t t = 0; t < count; ++t) {
        for (uint64_t h = 0; h < kHeads; ++h) {
          for (uint64_t d = 0; d < kDim; ++d) {
            const uint64_t at = IndexOf(order, count, kHeads, kDim, t, h, d);
            REQUIRE(LoadLE<uint16_t>(got.data() + 2 * at) == value(begin + t, h, d));
          }
        }
      }
    }
  }
}

TEST_CASE("floats of a part are the floats of the whole", "[layout]") {
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kQ8_0, DType::kQ5_1}) {
    const DTypeInfo& info = Info(dtype);
    const uint64_t units = 64 / info.block_elements;
    Bytes data = Random(6 * 2 * units * info.block_bytes, 9);
    for (std::byte& b : data) b &= std::byte{0x3f};  // finite
    const KvTensor tensor = ContiguousTensor(data.data(), dtype, 6, 2, 64, Order::kTokenHeadDim);
    const std::vector<float> all = GatherFloats(tensor, 0, 6, Order::kTokenHeadDim);
    const std::vector<float> heads = GatherFloats(tensor, 2, 3, Order::kHeadTokenDim);
    REQUIRE(all.size() == 6 * 2 * 64);
    for (uint64_t t = 0; t < 3; ++t) {
      for (uint64_t h = 0; h < 2; ++h) {
        for (uint64_t d = 0; d < 64; ++d)
          REQUIRE(heads[(h * 3 + t) * 64 + d] == all[((t + 2) * 2 + h) * 64 + d]);
      }
    }
  }
}

Snapshot OneLayer(Source source, KvTensor k, KvTensor v) {
  Snapshot snapshot;
  snapshot.source = std::move(source);
  LayerKv& layer = snapshot.layers.emplace_back();
  layer.k = std::move(k);
  layer.v = std::move(v);
  return snapshot;
}

TEST_CASE("regions name the ranges of a file in its own order", "[layout]") {
  const Source source = test::MakeSource(Random(4096));
  const std::byte* base = source.files[0].data->bytes().data();
  const KvTensor v = ContiguousTensor(base + 16, DType::kF16, 4, 2, 8, Order::kHeadDimToken);
  KvTensor k = ContiguousTensor(base + 1024, DType::kF16, 4, 2, 8, Order::kTokenHeadDim);
  k.pieces.push_back(
      ContiguousTensor(base + 512, DType::kF16, 2, 2, 8, Order::kHeadTokenDim).pieces[0]);
  const std::vector<Region> regions = FindRegions(OneLayer(source, k, v));
  REQUIRE(regions.size() == 3);
  CHECK(regions[0].offset == 16);
  CHECK(regions[0].is_value);
  CHECK(regions[0].order == Order::kHeadDimToken);
  CHECK(regions[1].offset == 512);
  CHECK(regions[1].order == Order::kHeadTokenDim);
  CHECK(regions[1].token_begin == 4);
  CHECK(regions[1].tokens == 2);
  CHECK(regions[2].size == 4 * 2 * 8 * 2);

  SECTION("overlaps are refused") {
    const KvTensor over = ContiguousTensor(base + 1150, DType::kF16, 4, 2, 8, Order::kTokenHeadDim);
    CHECK_THROWS_AS(FindRegions(OneLayer(source, k, over)), Error);
  }
  SECTION("padding and memory outside the file are no regions") {
    KvTensor gaps = ContiguousTensor(base + 2048, DType::kF16, 4, 2, 8, Order::kTokenHeadDim);
    gaps.pieces[0].token.step += 2;
    const Bytes elsewhere = Random(512);
    const KvTensor outside =
        ContiguousTensor(elsewhere.data(), DType::kF16, 4, 2, 8, Order::kTokenHeadDim);
    CHECK(FindRegions(OneLayer(source, gaps, outside)).empty());
  }
  SECTION("axes of one fit any order") {
    for (const Order order : kOrders) {
      const KvTensor one = ContiguousTensor(base + 256, DType::kF16, 1, 2, 8, order);
      const std::vector<Region> single = FindRegions(OneLayer(source, one, v));
      REQUIRE(single.size() == 2);
      CHECK(single[1].order == Order::kTokenHeadDim);
    }
  }
}

TEST_CASE("dividing rows into heads moves no value", "[layout]") {
  for (const uint32_t transposed : {0u, 1u}) {
    test::LlamaState state;
    state.caches[0].transposed = transposed;
    const Source source = test::MakeSource(state.Write());
    OpenOptions options;
    const Snapshot rows = OpenSnapshot(source, options);
    ModelGeometry geometry;
    geometry.uniform.kv_heads = 2;
    Snapshot heads = rows;
    ApplyGeometry(geometry, heads);
    REQUIRE(heads.heads_known());
    CHECK(heads.layers[0].k.heads == 2);
    CHECK(heads.layers[0].k.head_dim == 4);
    for (size_t i = 0; i < 2; ++i) {
      for (const Order order : {Order::kTokenHeadDim, Order::kHeadDimToken}) {
        CHECK(Gather(*heads.layers[i].v, 0, 3, order) == Gather(*rows.layers[i].v, 0, 3, order));
        CHECK(Gather(heads.layers[i].k, 0, 3, order) == Gather(rows.layers[i].k, 0, 3, order));
      }
    }
    const std::vector<Region> a = FindRegions(rows), b = FindRegions(heads);
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      CHECK(a[i].offset == b[i].offset);
      CHECK(a[i].order == b[i].order);
      CHECK(b[i].heads_known);
      CHECK_FALSE(a[i].heads_known);
    }
    Snapshot again = heads;
    geometry.uniform.kv_heads = 4;  // a known number of heads is not overwritten
    ApplyGeometry(geometry, again);
    CHECK(again.layers[0].k.heads == 2);
  }
}

TEST_CASE("heads that do not divide the rows are refused", "[layout]") {
  test::LlamaState state;
  state.caches[0].k_type = state.caches[0].v_type = 8;
  state.caches[0].k_row = state.caches[0].v_row = 2 * 34;
  const Snapshot rows = OpenSnapshot(test::MakeSource(state.Write()), {});
  const auto with = [&](uint32_t heads, uint32_t dim) {
    Snapshot snapshot = rows;
    ModelGeometry geometry;
    geometry.uniform.kv_heads = heads;
    geometry.uniform.k_dim = dim;
    ApplyGeometry(geometry, snapshot);
    return snapshot.layers[1].v->heads;
  };
  CHECK(with(2, 0) == 2);
  CHECK(with(0, 32) == 2);
  CHECK(with(1, 64) == 1);
  CHECK_THROWS_AS(with(3, 0), Error);
  CHECK_THROWS_AS(with(0, 48), Error);
  CHECK_THROWS_AS(with(0, 128), Error);
  CHECK_THROWS_AS(with(2, 64), Error);
  CHECK_THROWS_WITH(with(4, 0), Catch::Contains("whole q8_0 blocks"));
  CHECK_THROWS_WITH(RequireHeads(rows, "replay"), Catch::Contains("replay needs"));
  ModelGeometry other;
  other.source = std::string("m.gguf");
  other.layers.resize(3);
  Snapshot snapshot = rows;
  CHECK_THROWS_WITH(ApplyGeometry(other, snapshot), Catch::Contains("m.gguf has 3 layers"));
}

}  // namespace
}  // namespace kv::layout_test
