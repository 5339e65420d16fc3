// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/floor.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "formats/registry.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/snapshot/layout.h"

namespace kv::floor_test {
namespace {

// Cuts every K and V of a state into pages of 16 and 64 KiB.
template <typename F>
void ForEachPage(const std::filesystem::path& path, F&& use) {
  const Source source = Source::Open(path);
  const Snapshot snapshot = OpenSnapshot(source, {});
  for (const LayerKv& layer : snapshot.layers) {
    std::vector<const KvTensor*> tensors{&layer.k};
    if (layer.v) tensors.push_back(&*layer.v);
    for (const KvTensor* tensor : tensors) {
      const Bytes all = Gather(*tensor, 0, tensor->tokens(), Order::kTokenHeadDim);
      const uint64_t row = all.size() / tensor->tokens();
      for (const uint64_t page : {uint64_t{16} << 10, uint64_t{64} << 10}) {
        const uint64_t rows = page / row;
        const uint64_t units = tensor->head_dim / Info(tensor->dtype).block_elements;
        const ChunkShape shape{tensor->dtype, rows, tensor->heads, units, Order::kTokenHeadDim};
        for (uint64_t at = 0; at + rows <= tensor->tokens(); at += rows)
          use(shape, ByteSpan(all).subspan(at * row, rows * row));
      }
    }
  }
}

}  // namespace

TEST_CASE("No page of real caches is smaller than its floor, and most are not far above",
          "[codec]") {
  CodecScratch scratch;
  size_t pages = 0;
  for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    double floors = 0, sizes = 0;
    for (const char* name :
         {"s260k-v050-f16.seq0.bin", "s260k-v050-bf16.seq0.bin", "s260k-v050-holes.seq0.bin",
          "kjv3m-b8352-q8_0.seq0.bin", "kjv3m-v050-q4_0-rotated.seq0.bin"}) {
      const auto path = std::filesystem::path(KVTOOL_TESTDATA) / "llamacpp/states" / name;
      ForEachPage(path, [&](const ChunkShape& shape, ByteSpan raw) {
        const uint64_t floor = EstimateFloor(shape, raw, effort, false);
        const uint64_t size = EncodeChunk(shape, raw, effort, scratch).payload.size();
        INFO(name << " at level " << Name(effort));
        CHECK(floor <= size);
        floors += static_cast<double>(floor);
        sizes += static_cast<double>(size);
        ++pages;
      });
    }
    INFO("level " << Name(effort));
    CHECK(floors > sizes * (effort == Effort::kMax ? 0.6 : 0.7));
  }
  CHECK(pages > 100);
}

TEST_CASE("The floor of what repeats, of nothing and of noise", "[codec]") {
  const ChunkShape shape{DType::kBF16, 64, 2, 64, Order::kTokenHeadDim};
  Bytes raw(16 << 10);
  CHECK(EstimateFloor(shape, raw, Effort::kDefault, false) == 0);
  CHECK(EstimateFloor(shape, ByteSpan(raw).first(0), Effort::kDefault, false) == 0);
  uint32_t state = 1;
  for (std::byte& byte : raw) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  const uint64_t noise = EstimateFloor(shape, raw, Effort::kFast, false);
  CHECK(noise > raw.size() * 9 / 10);
  CHECK(noise <= raw.size());
  // The second half repeats the first, row for row.
  std::copy_n(raw.begin(), raw.size() / 2,
              raw.begin() + static_cast<std::ptrdiff_t>(raw.size() / 2));
  CHECK(EstimateFloor(shape, raw, Effort::kDefault, false) < raw.size() / 2);
}

}  // namespace kv::floor_test
