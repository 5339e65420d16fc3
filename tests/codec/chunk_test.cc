// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/chunk.h"

#include <catch2/catch.hpp>
#include <random>

namespace kv {
namespace {

Bytes RandomBytes(size_t size, uint32_t seed, uint32_t values = 256) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() % values);
  return bytes;
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
  CodecScratch scratch;  // shared, as an archive shares it
  for (const DTypeInfo& info : AllDTypes()) {
    for (const size_t size : {0, 1, 2, 3, 34, 100, 4097, 34 * 20 * 18 * 22}) {
      for (const uint32_t values : {1, 3, 40, 256}) {
        INFO(info.name << ", " << size << " bytes, " << values << " different values");
        const Bytes raw = RandomBytes(size, static_cast<uint32_t>(size) + values, values);
        const ChunkShape shape = ShapeOf(info.dtype, size / info.block_bytes);
        const EncodedChunk chunk = EncodeChunk(shape, raw, Effort::kCompat, scratch);
        CHECK(chunk.payload.size() <= raw.size());
        CHECK((chunk.codec == CodecId::kRaw || chunk.payload.size() < raw.size()));
        CHECK(RoundTrip(shape, chunk, size) == raw);
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
  for (const CodecId id :
       {CodecId::kRaw, CodecId::kGear16, CodecId::kGear32, CodecId::kZstdPlanes, CodecId::kZstd}) {
    CHECK_FALSE(Name(id).empty());
  }
  CHECK(Name(static_cast<CodecId>(200)).empty());
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
}  // namespace kv
