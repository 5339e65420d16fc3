// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/halves.h"

#include <catch2/catch.hpp>

#include "lib/core/base/half.h"
#include "lib/core/codec/chunk.h"
#include "tests/support/damage.h"
#include "tests/support/grid.h"
#include "tests/support/targets.h"

namespace kv::halves_test {
namespace {

constexpr DType kTypes[] = {DType::kF8E4M3, DType::kF8E5M2};

Bytes AllBytes() {
  Bytes all(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i);
  return all;
}

// ByteGrid is a grid of correlated values, rounded to 8 bits.
struct ByteGrid {
  explicit ByteGrid(DType dtype, uint64_t rows = 200) {
    const test::Grid grid = test::MakeGrid(rows, 32, 32, false, 3);
    const auto round = dtype == DType::kF8E4M3 ? F32ToE4M3 : F32ToE5M2;
    for (const float x : grid.x)
      raw.push_back(static_cast<std::byte>(round(x, Float8Overflow::kSaturate)));
    shape = {.dtype = dtype, .tokens = rows, .heads = 1, .units_per_head = grid.columns};
  }

  ChunkShape shape;
  Bytes raw;
};

Bytes Decoded(const ByteGrid& grid, const EncodedChunk& chunk) {
  CodecScratch scratch;
  Bytes back(grid.raw.size());
  DecodeChunk(chunk.codec, grid.shape, chunk.payload, back, scratch);
  return back;
}

}  // namespace

TEST_CASE("an 8-bit float is the f16 with its bits, f8_e4m3 divided by 256", "[codec]") {
  const Bytes all = AllBytes();
  for (const DType dtype : kTypes) {
    const Halves halves(dtype, all, nullptr);
    REQUIRE(halves.bytes().size() == 512);
    for (uint32_t i = 0; i < 256; ++i) {
      const float half = F16ToF32(LoadLE<uint16_t>(halves.bytes().data() + 2 * i));
      const auto byte = static_cast<uint8_t>(i);
      const float value = dtype == DType::kF8E4M3 ? E4M3ToF32(byte) / 256 : E5M2ToF32(byte);
      if (value == value) CHECK(half == value);
    }
    Bytes back(256);
    NarrowHalves(dtype, halves.bytes(), back);
    CHECK(back == all);
    // The bit below the lowest that an 8-bit float has.
    for (const uint32_t bit : {0u, FindByteShift(dtype) - 1}) {
      Bytes wrong(halves.bytes().begin(), halves.bytes().end());
      StoreLE(wrong.data() + 10, static_cast<uint16_t>(1u << bit));
      CHECK_THROWS_AS(NarrowHalves(dtype, wrong, back), Error);
    }
  }
  // 0x4000 has the highest exponent bit, which f8_e4m3 lacks.
  Bytes wrong(2), one(1);
  StoreLE(wrong.data(), uint16_t{0x4000});
  CHECK_THROWS_AS(NarrowHalves(DType::kF8E4M3, wrong, one), Error);
}

TEST_CASE("levels make chunks of 8-bit floats smaller one after another", "[codec]") {
  for (const DType dtype : kTypes) {
    const ByteGrid grid(dtype);
    CodecScratch scratch;
    size_t before = grid.raw.size();
    for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
      INFO(Name(dtype) << ' ' << Name(effort));
      const EncodedChunk chunk = EncodeChunk(grid.shape, grid.raw, effort, scratch);
      CHECK(Decoded(grid, chunk) == grid.raw);
      CHECK(chunk.payload.size() <= before + before / 1000);
      before = chunk.payload.size();
      test::ForEachTarget([&](const std::string& target) {
        INFO(target);
        const EncodedChunk again = EncodeChunk(grid.shape, grid.raw, effort, scratch);
        CHECK(again.codec == chunk.codec);
        CHECK(again.payload == chunk.payload);
        CHECK(Decoded(grid, chunk) == grid.raw);
      });
    }
    CHECK(before < grid.raw.size() * 3 / 4);
  }
}

TEST_CASE("damaged chunks of 8-bit floats are refused or come out with the right size", "[codec]") {
  for (const DType dtype : kTypes) {
    const ByteGrid grid(dtype, 32);
    for (const Effort effort : {Effort::kDefault, Effort::kHigh, Effort::kMax}) {
      CodecScratch scratch;
      const EncodedChunk chunk = EncodeChunk(grid.shape, grid.raw, effort, scratch);
      INFO(Name(dtype) << ' ' << Name(chunk.codec));
      Bytes back(grid.raw.size());
      test::CheckDamage(chunk.payload, [&](ByteSpan damaged) {
        DecodeChunk(chunk.codec, grid.shape, damaged, back, scratch);
      });
    }
  }
}

}  // namespace kv::halves_test
