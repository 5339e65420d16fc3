// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <zstd.h>

#include <catch2/catch.hpp>
#include <random>

#include "lib/core/codec/chunk.h"
#include "lib/core/codec/planes/planes.h"

namespace kv::blocks_test {
namespace {

// Returns values with repeating upper bytes and noise in the lower ones.
Bytes Values(size_t bytes, uint32_t word) {
  std::mt19937 random(5);
  Bytes raw(bytes);
  for (size_t i = 0; i < bytes; ++i)
    raw[i] = static_cast<std::byte>(i % word + 1 == word ? random() % 5 : random());
  return raw;
}

Bytes Encode(DType dtype, ByteSpan raw, int level = kOnlyLiterals) {
  CodecScratch scratch;
  Bytes payload;
  EncodeBlocks(dtype, raw, level, scratch, payload);
  return payload;
}

}  // namespace

TEST_CASE("Planes split and join to the same words, whole values or not", "[codec]") {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kQ8_0}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{2}, size_t{8}, size_t{34}, size_t{8190},
                              size_t{8192}, size_t{20'004}}) {
      const WordPlanes split = ChoosePlanes(dtype, size);
      const Bytes raw = Values(size, 2);
      Bytes planes(size), back(size);
      SplitWords(split, raw, planes);
      JoinWords(split, planes, back);
      CHECK(back == raw);
    }
  }
  CHECK(ChoosePlanes(DType::kBF16, 8) == WordPlanes{2, true});
  CHECK(ChoosePlanes(DType::kF16, 8) == WordPlanes{2, false});
  CHECK(ChoosePlanes(DType::kF32, 8) == WordPlanes{4, false});
  CHECK(ChoosePlanes(DType::kF32, 7) == WordPlanes{});
  // 1.0 in bf16 is 0x3f80: plane 1 holds its exponent, 127.
  const std::byte one[] = {std::byte{0x80}, std::byte{0x3f}};
  Bytes planes(2);
  SplitWords(ChoosePlanes(DType::kBF16, 2), one, planes);
  CHECK(planes[1] == std::byte{127});
}

TEST_CASE("Every block is a zstd frame of its own or raw, at a multiple of 16 bytes", "[codec]") {
  for (const int level : {kOnlyLiterals, 1, 19}) {
    const Bytes raw = Values(300'002, 2), payload = Encode(DType::kF16, raw, level);
    const PlaneBlocks found = ReadBlocks(DType::kF16, payload, raw.size());
    REQUIRE(found.split == WordPlanes{2, false});
    REQUIRE(found.blocks.size() == 6);
    Bytes planes;
    for (const PlaneBlock& block : found.blocks) {
      CHECK(block.offset % kPlaneBlockAlignment == 0);
      const bool is_low = planes.size() < raw.size() / 2;
      CHECK(block.stored() == is_low);
      const std::byte* from = payload.data() + block.offset;
      Bytes bytes(from, from + block.bytes);
      if (!block.stored()) {
        bytes.resize(block.raw_bytes);
        CHECK(ZSTD_getFrameContentSize(from, block.bytes) == block.raw_bytes);
        CHECK(ZSTD_decompress(bytes.data(), bytes.size(), from, block.bytes) == block.raw_bytes);
      }
      planes.insert(planes.end(), bytes.begin(), bytes.end());
    }
    Bytes back(raw.size());
    JoinWords(found.split, planes, back);
    CHECK(back == raw);
  }
}

TEST_CASE("Blocks that contradict their table are refused", "[codec][reject]") {
  CodecScratch scratch;
  const Bytes raw = Values(200'000, 2), payload = Encode(DType::kF16, raw);
  Bytes back(raw.size());
  DecodeBlocks(DType::kF16, payload, back, scratch);
  REQUIRE(back == raw);
  const auto finding_of = [&](const Bytes& changed, size_t raw_bytes) {
    back.resize(raw_bytes);
    try {
      DecodeBlocks(DType::kF16, changed, back, scratch);
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding{};
  };
  struct Change {
    size_t at;
    uint32_t value;
    size_t bytes;
  };
  for (const Change& change : {Change{0, 3, 1},
                               {0, 0, 1},
                               {0, 1, 1},
                               {1, 1, 1},
                               {1, 2, 1},
                               {2, 0, 1},
                               {2, 2, 1},
                               {3, 1, 1},
                               {4, 1 << 15, 4},
                               {8, 5, 4},
                               {8, 0xffffffff, 4},
                               {12, 1, 4},
                               {16, 0, 4},
                               {16, 0xfffffff0, 4},
                               {20, 65'537, 4},
                               {20, 65'535, 4},
                               {40, 0, 4}}) {
    INFO("offset " << change.at << " = " << change.value);
    Bytes changed = payload;
    std::memcpy(&changed[change.at], &change.value, change.bytes);
    CHECK(finding_of(changed, raw.size()) == Finding::kBadFrame);
  }
  CHECK(finding_of(payload, raw.size() - 2) == Finding::kBadFrame);
  CHECK(finding_of(payload, 0) == Finding::kBadFrame);
  Bytes longer = payload, shorter = payload, damaged = payload;
  longer.resize(payload.size() + 16);
  CHECK(finding_of(longer, raw.size()) == Finding::kTrailingBytes);
  shorter.pop_back();
  CHECK(finding_of(shorter, raw.size()) == Finding::kTruncated);
  const PlaneBlock last = ReadBlocks(DType::kF16, payload, raw.size()).blocks.back();
  damaged[last.offset] ^= std::byte{1};
  CHECK(finding_of(damaged, raw.size()) == Finding::kBadPayload);
  damaged = payload;
  REQUIRE(last.offset + last.bytes < payload.size());
  damaged.back() = std::byte{1};
  CHECK(finding_of(damaged, raw.size()) == Finding::kBadFrame);
}

TEST_CASE("A block that is not one zstd frame with its size is refused", "[codec][reject]") {
  const Bytes raw(1000, std::byte{7});  // 1000 equal bytes are one block, which compresses
  const auto payload_of = [&](const Bytes& block) {
    Bytes payload = Encode(DType::kU8, raw);
    payload.resize(32);
    StoreLE(&payload[20], static_cast<uint32_t>(block.size()));
    payload.insert(payload.end(), block.begin(), block.end());
    payload.resize((payload.size() + 15) / 16 * 16);
    return payload;
  };
  const auto finding_of = [&](DType dtype, const Bytes& payload) {
    try {
      ReadBlocks(dtype, payload, raw.size());
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding{};
  };
  const auto frame_of = [](ByteSpan content, bool states_size) {
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, states_size ? 1 : 0);
    Bytes frame(ZSTD_compressBound(content.size()));
    frame.resize(
        ZSTD_compress2(context, frame.data(), frame.size(), content.data(), content.size()));
    ZSTD_freeCCtx(context);
    return frame;
  };
  const Bytes whole = frame_of(raw, true);
  CHECK(finding_of(DType::kU8, payload_of(whole)) == Finding{});
  CHECK(finding_of(DType::kF16, payload_of(whole)) == Finding::kBadFrame);
  CHECK(finding_of(DType::kU8, payload_of(frame_of(raw, false))) == Finding::kBadPayload);
  CHECK(finding_of(DType::kU8, payload_of(frame_of(ByteSpan(raw).first(999), true))) ==
        Finding::kBadPayload);
  const Bytes half = frame_of(ByteSpan(raw).first(500), true);
  Bytes halves = half;
  // Two frames of 500 bytes decode to 1000 bytes, but a payload is one frame.
  halves.insert(halves.end(), half.begin(), half.end());
  CHECK(finding_of(DType::kU8, payload_of(halves)) == Finding::kBadPayload);
  Bytes skipped = whole;
  // A skippable zstd frame without content.
  for (const int byte : {0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0})
    skipped.push_back(static_cast<std::byte>(byte));
  CHECK(finding_of(DType::kU8, payload_of(skipped)) == Finding::kBadPayload);
}

}  // namespace kv::blocks_test
