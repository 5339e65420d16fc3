// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/chunk.h"

#include <catch2/catch.hpp>
#include <random>

#include "lib/core/base/half.h"
#include "tests/support/targets.h"

namespace kv::chunk_test {
namespace {

Bytes RandomBytes(size_t size, uint32_t seed, uint32_t values = 256) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() % values);
  return bytes;
}

constexpr Effort kEfforts[] = {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh,
                               Effort::kMax};

struct Grid {
  uint64_t rows, columns;

  ChunkShape Shape(DType dtype) const { return {dtype, rows, 1, columns, Order::kTokenHeadDim}; }
};

// Draws channels with correlated rows (`memory` near 1) or independent ones (0), as halves.
Bytes Walk(const Grid& grid, DType dtype, float memory, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> state(grid.columns), offset(grid.columns);
  for (float& o : offset) o = memory * 3 * normal(random);
  Bytes bytes(2 * grid.rows * grid.columns);
  for (size_t i = 0; i < grid.rows * grid.columns; ++i) {
    float& x = state[i % grid.columns];
    x = memory * x + (1 - 0.6f * memory) * normal(random);
    const float value = offset[i % grid.columns] + x;
    StoreLE(bytes.data() + 2 * i, dtype == DType::kBF16 ? F32ToBF16(value) : F32ToF16(value));
  }
  return bytes;
}

// Replaces every fifth row by a copy of an earlier one.
Bytes WithCopies(Bytes rows, const Grid& grid) {
  const auto row = static_cast<std::ptrdiff_t>(rows.size() / grid.rows);
  for (std::ptrdiff_t i = 5; i < static_cast<std::ptrdiff_t>(grid.rows); i += 5)
    std::copy_n(rows.begin() + (i * 7 % i) * row, row, rows.begin() + i * row);
  return rows;
}

// Replaces the rows by those of a few different tokens. Of every 32 channels the upper quarter
// repeats with the token, like slow rotary pairs; the rest is noise.
Bytes WithSlowChannels(Bytes rows, const Grid& grid) {
  std::mt19937 random(3);
  for (uint64_t row = 16; row < grid.rows; ++row) {
    const uint64_t token = random() % 16;
    for (uint64_t c = 24; c + 8 <= grid.columns; c += 32) {
      const auto from = rows.begin() + static_cast<std::ptrdiff_t>(2 * (token * grid.columns + c));
      std::copy_n(from, 16,
                  rows.begin() + static_cast<std::ptrdiff_t>(2 * (row * grid.columns + c)));
    }
  }
  return rows;
}

ChunkShape ShapeOf(DType dtype, uint64_t units) {
  return {dtype, units, 1, 1, Order::kTokenHeadDim};
}

Bytes RoundTrip(const ChunkShape& shape, const EncodedChunk& chunk, size_t size) {
  CodecScratch scratch;
  Bytes raw(size);
  DecodeChunk(chunk.codec, shape, chunk.payload, raw, scratch);
  return raw;
}

TEST_CASE("chunks of every dtype come back, whole units or not", "[codec]") {
  CodecScratch scratch;  // one scratch for all chunks, as in an archive
  for (const DTypeInfo& info : AllDTypes()) {
    for (const size_t size : {0, 1, 2, 3, 34, 100, 4097, 34 * 20 * 18 * 22}) {
      for (const uint32_t values : {1, 3, 40, 256}) {
        INFO(info.name << ", " << size << " bytes, " << values << " different values");
        const Bytes raw = RandomBytes(size, static_cast<uint32_t>(size) + values, values);
        const ChunkShape shape = ShapeOf(info.dtype, size / info.block_bytes);
        for (const Effort effort : kEfforts) {
          INFO(Name(effort));
          if (size > 10000 && effort > Effort::kDefault) continue;
          const EncodedChunk chunk = EncodeChunk(shape, raw, effort, scratch);
          REQUIRE(chunk.payload.size() <= raw.size());
          REQUIRE((chunk.codec == CodecId::kRaw || chunk.payload.size() < raw.size()));
          REQUIRE(RoundTrip(shape, chunk, size) == raw);
        }
      }
    }
  }
}

TEST_CASE("the dtype decides the codec, and what would grow is stored", "[codec]") {
  CodecScratch scratch;
  const auto codec = [&](DType dtype, ByteSpan raw) {
    return EncodeChunk(ShapeOf(dtype, 1), raw, Effort::kCompat, scratch).codec;
  };
  const Bytes few = RandomBytes(34 * 18 * 20 * 22, 1, 5);
  CHECK(codec(DType::kF16, few) == CodecId::kGear16);
  CHECK(codec(DType::kBF16, few) == CodecId::kGear16);
  CHECK(codec(DType::kF32, few) == CodecId::kGear32);
  CHECK(codec(DType::kQ8_0, few) == CodecId::kZstdPlanes);
  CHECK(codec(DType::kIQ4_NL, few) == CodecId::kZstdPlanes);
  CHECK(codec(DType::kI8, few) == CodecId::kZstd);
  CHECK(codec(DType::kF16, ByteSpan(few).first(4001)) == CodecId::kZstd);
  CHECK(codec(DType::kF16, RandomBytes(4096, 2)) == CodecId::kRaw);
  CHECK(codec(DType::kF16, {}) == CodecId::kRaw);
  CHECK(Name(static_cast<CodecId>(200)).empty());
}

TEST_CASE("levels choose by what the values are like", "[codec]") {
  CodecScratch scratch;
  const Grid grid{256, 64};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    INFO(Name(dtype));
    const auto codec = [&](const Bytes& raw, Effort effort) {
      return EncodeChunk(grid.Shape(dtype), raw, effort, scratch).codec;
    };
    const CodecId literal = dtype == DType::kF16 ? CodecId::kGear16 : CodecId::kRotated16;
    const Bytes keys = Walk(grid, dtype, 0.95f, 1), values = Walk(grid, dtype, 0, 2);
    CHECK(codec(keys, Effort::kFast) == literal);
    CHECK(codec(values, Effort::kFast) == literal);
    CHECK(codec(keys, Effort::kDefault) == CodecId::kPrev);
    CHECK(codec(values, Effort::kDefault) == literal);
    const Grid longer{1024, 64};
    const Bytes more = Walk(longer, dtype, 0, 2);
    CHECK(EncodeChunk(longer.Shape(dtype), more, Effort::kDefault, scratch).codec ==
          CodecId::kPrev);
    CHECK(codec(WithCopies(values, grid), Effort::kDefault) == CodecId::kRows);
    CHECK(codec(WithCopies(keys, grid), Effort::kHigh) == CodecId::kRows);
  }
}

TEST_CASE("no level above compat is larger by more than a thousandth, nor are higher ones",
          "[codec]") {
  CodecScratch scratch;
  for (const Grid& grid : {Grid{3, 16}, Grid{40, 8}, Grid{100, 64}, Grid{64, 300}, Grid{1, 5000}}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      for (const float memory : {0.0f, 0.5f, 0.98f}) {
        for (const bool copies : {false, true}) {
          INFO(Name(dtype) << ' ' << grid.rows << 'x' << grid.columns << ' ' << memory << copies);
          Bytes raw = Walk(grid, dtype, memory, 7);
          if (copies) raw = WithCopies(std::move(raw), grid);
          const auto size = [&](Effort effort) {
            return EncodeChunk(grid.Shape(dtype), raw, effort, scratch).payload.size();
          };
          const size_t compat = size(Effort::kCompat), standard = size(Effort::kDefault);
          const size_t slack = 24;  // in tiny chunks 0.1 % is less than a byte
          CHECK(standard <= compat + compat / 1000 + slack);
          CHECK(size(Effort::kHigh) <= standard + standard / 1000 + slack);
          CHECK(size(Effort::kMax) <= compat);
        }
      }
    }
  }
}

TEST_CASE("channels that come back are found wherever they are in a head", "[codec]") {
  CodecScratch scratch;
  for (const Grid& grid : {Grid{256, 64}, Grid{2048, 128}, Grid{400, 1024}}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      INFO(Name(dtype) << ' ' << grid.rows << 'x' << grid.columns);
      const Bytes raw = WithSlowChannels(Walk(grid, dtype, 0, 5), grid);
      const auto size = [&](Effort effort) {
        return EncodeChunk(grid.Shape(dtype), raw, effort, scratch).payload.size();
      };
      const size_t compat = size(Effort::kCompat);
      CHECK(size(Effort::kDefault) <= compat + compat / 1000);
      CHECK(static_cast<double>(compat) < 0.95 * static_cast<double>(size(Effort::kFast)));
    }
  }
}

TEST_CASE("zeros and constants cost next to nothing at any level", "[codec]") {
  CodecScratch scratch;
  const Grid grid{512, 128};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const std::byte value : {std::byte{0}, std::byte{0x3c}}) {
      const Bytes raw(2 * grid.rows * grid.columns, value);
      for (const Effort effort : kEfforts) {
        const EncodedChunk chunk = EncodeChunk(grid.Shape(dtype), raw, effort, scratch);
        CHECK(chunk.payload.size() < 150);
        CHECK(RoundTrip(grid.Shape(dtype), chunk, raw.size()) == raw);
      }
    }
  }
}

TEST_CASE("every SIMD target writes and reads the same chunk", "[codec]") {
  const Grid grid{150, 72};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const float memory : {0.0f, 0.97f}) {
      const Bytes raw = WithCopies(Walk(grid, dtype, memory, 5), grid);
      for (const Effort effort : kEfforts) {
        std::optional<EncodedChunk> first;
        test::ForEachTarget([&](const std::string& target) {
          INFO(target);
          CodecScratch scratch;
          const EncodedChunk chunk = EncodeChunk(grid.Shape(dtype), raw, effort, scratch);
          if (!first) first = chunk;
          REQUIRE(chunk.codec == first->codec);
          REQUIRE(chunk.payload == first->payload);
          REQUIRE(RoundTrip(grid.Shape(dtype), chunk, raw.size()) == raw);
        });
      }
    }
  }
}

TEST_CASE("floats that are halves are stored as such", "[codec]") {
  CodecScratch scratch;
  const Grid grid{200, 64};
  const size_t count = grid.rows * grid.columns;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Bytes halves = Walk(grid, dtype, 0.97f, 6);
    Bytes floats(4 * count);
    for (size_t i = 0; i < count; ++i) {
      const auto half = LoadLE<uint16_t>(halves.data() + 2 * i);
      StoreLE(floats.data() + 4 * i, dtype == DType::kF16 ? F16ToF32(half) : BF16ToF32(half));
    }
    for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kHigh}) {
      const EncodedChunk narrow = EncodeChunk(grid.Shape(dtype), halves, effort, scratch);
      const EncodedChunk wide = EncodeChunk(grid.Shape(DType::kF32), floats, effort, scratch);
      CHECK(wide.codec == CodecId::kWidened);
      CHECK(wide.payload.size() <= narrow.payload.size() + 100);
      CHECK(RoundTrip(grid.Shape(DType::kF32), wide, floats.size()) == floats);
    }
    floats[5] ^= std::byte{1};  // this value no longer fits fewer bits
    const EncodedChunk wide =
        EncodeChunk(grid.Shape(DType::kF32), floats, Effort::kDefault, scratch);
    CHECK(wide.codec == CodecId::kWidened);
    CHECK(RoundTrip(grid.Shape(DType::kF32), wide, floats.size()) == floats);
  }
}

TEST_CASE("exponents all over a window of fifteen take four bits at the fast level", "[codec]") {
  CodecScratch scratch;
  const Grid grid{100, 64};
  std::mt19937 random(8);
  Bytes raw(2 * grid.rows * grid.columns);
  for (size_t i = 0; i < raw.size(); i += 2) {
    const uint32_t exponent = random() % 500 == 0 ? 3 : 110 + random() % 15;
    StoreLE(raw.data() + i, static_cast<uint16_t>((random() & 0x807f) | exponent << 7));
  }
  const EncodedChunk chunk = EncodeChunk(grid.Shape(DType::kBF16), raw, Effort::kFast, scratch);
  CHECK(chunk.codec == CodecId::kWindow4);
  CHECK(RoundTrip(grid.Shape(DType::kBF16), chunk, raw.size()) == raw);
}

TEST_CASE("bf16 zeros among values keep their exponents", "[codec]") {
  CodecScratch scratch;
  const Grid grid{64, 64};
  Bytes raw = Walk(grid, DType::kBF16, 0.97f, 3);
  for (const size_t step : {2, 3, 5, 97}) {  // step 2 makes most values zero, larger steps fewer
    Bytes sparse = raw;
    for (size_t i = 0; i < sparse.size() / 2; ++i) {
      if ((step == 2) == (i % 5 != 0) && (step == 2 || i % step == 0))
        StoreLE(sparse.data() + 2 * i, uint16_t{0});
    }
    const EncodedChunk chunk =
        EncodeChunk(grid.Shape(DType::kBF16), sparse, Effort::kHigh, scratch);
    CHECK(RoundTrip(grid.Shape(DType::kBF16), chunk, sparse.size()) == sparse);
  }
}

TEST_CASE("rows refuse references to what is not there, and themselves", "[codec][reject]") {
  CodecScratch scratch;
  const Grid grid{50, 64};
  const Bytes raw = WithCopies(Walk(grid, DType::kF16, 0, 4), grid);
  const ChunkShape shape = grid.Shape(DType::kF16);
  const EncodedChunk chunk = EncodeChunk(shape, raw, Effort::kDefault, scratch);
  REQUIRE(chunk.codec == CodecId::kRows);
  Bytes out(raw.size());
  const auto refused = [&](size_t at, uint8_t value) {
    Bytes bad = chunk.payload;
    bad[at] = std::byte{value};
    CHECK_THROWS_AS(DecodeChunk(CodecId::kRows, shape, bad, out, scratch), Error);
  };
  refused(0, 18);   // the inner chunk is a rows chunk, too
  refused(0, 200);  // no codec
  refused(1, 0);    // no new rows
  refused(1, 51);   // more new rows than the chunk has rows
  refused(1, 30);   // the references disagree
  refused(4, 255);
  refused(5, 255);  // a reference past the end
  for (const CodecId id :
       {CodecId::kLms, CodecId::kWindow4, CodecId::kWidened, CodecId::kCdf, CodecId::kLike}) {
    CHECK_THROWS_AS(DecodeChunk(id, ShapeOf(DType::kU8, 1), raw, out, scratch), Error);
    CHECK_THROWS_AS(DecodeChunk(id, shape, ByteSpan(raw).first(3), out, scratch), Error);
  }
  // A rows codec inside floats inside rows would use the same buffer twice.
  Bytes nested = {std::byte{1}, std::byte{18}};
  nested.resize(60);
  CHECK_THROWS_AS(DecodeChunk(CodecId::kWidened, ShapeOf(DType::kF32, 16), nested,
                              std::span(out).first(64), scratch),
                  Error);
  CHECK_THROWS_AS(DecodeChunk(CodecId::kPrev, ShapeOf(DType::kF32, 1), raw, out, scratch), Error);
}

TEST_CASE("a gear chunk is the engine's container", "[codec]") {
  CodecScratch scratch;
  const Bytes raw = RandomBytes(6000, 3, 60);
  Bytes container;
  EncodeGear(GearKind::kTwoPlanes, raw, {}, scratch, container);
  const EncodedChunk chunk =
      EncodeChunk(ShapeOf(DType::kBF16, 3000), raw, Effort::kCompat, scratch);
  CHECK(chunk.codec == CodecId::kGear16);
  CHECK(chunk.payload == container);
  CHECK(chunk.planes.size() == 2);
}

TEST_CASE("damaged chunks are refused, never misread", "[codec][reject]") {
  CodecScratch scratch;
  const Bytes raw = RandomBytes(34 * 18 * 20, 4, 9);
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kQ8_0, DType::kQ4_1, DType::kU8}) {
    const ChunkShape shape = ShapeOf(dtype, raw.size() / Info(dtype).block_bytes);
    const EncodedChunk chunk = EncodeChunk(shape, raw, Effort::kCompat, scratch);
    REQUIRE(chunk.codec != CodecId::kRaw);
    INFO(Name(chunk.codec) << " of " << Name(dtype));
    Bytes out(raw.size());
    const auto decode = [&](ByteSpan payload, size_t size) {
      DecodeChunk(chunk.codec, shape, payload, std::span(out).first(size), scratch);
    };
    CHECK_THROWS_AS(decode(ByteSpan(chunk.payload).first(chunk.payload.size() - 1), raw.size()),
                    Error);
    CHECK_THROWS_AS(decode({}, raw.size()), Error);
    CHECK_THROWS_AS(decode(chunk.payload, raw.size() - Info(dtype).block_bytes), Error);
    Bytes longer = chunk.payload;
    longer.push_back(std::byte{7});
    CHECK_THROWS_AS(decode(longer, raw.size()), Error);
  }
  const ChunkShape shape = ShapeOf(DType::kF16, raw.size() / 2);
  Bytes out(raw.size());
  CHECK_THROWS_AS(DecodeChunk(CodecId::kRaw, shape, ByteSpan(raw).first(8), out, scratch), Error);
  CHECK_THROWS_AS(DecodeChunk(CodecId::kZstdPlanes, shape, raw, out, scratch), Error);
  CHECK_THROWS_AS(DecodeChunk(static_cast<CodecId>(99), shape, raw, out, scratch), Error);
}

}  // namespace
}  // namespace kv::chunk_test
