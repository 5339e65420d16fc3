// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>

#include "lib/core/base/half.h"
#include "lib/core/codec/ref/similar_rows.h"

namespace kv::ref_sparse_test {
namespace {

constexpr uint64_t kColumns = 24;

struct Case {
  bool bfloat = false;
  std::vector<uint16_t> expected, values;

  explicit Case(uint64_t rows, bool is_bfloat = false) : bfloat(is_bfloat) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < rows * kColumns; ++i)
      expected.push_back(bfloat ? F32ToBF16(normal(random)) : F32ToF16(normal(random)));
    values = expected;
  }
  SimilarRows Similar(Arena& arena) const {
    SimilarRows similar(&arena);
    similar.form.bfloat = bfloat;
    similar.columns = kColumns;
    similar.expected.assign(expected.begin(), expected.end());
    similar.values.assign(values.begin(), values.end());
    similar.factors.resize(expected.size() / kColumns);
    return similar;
  }
  Bytes Encoded() const {
    CodecScratch scratch;
    ByteWriter out;
    EncodeSimilarDifferences(Similar(scratch.context.arena), scratch, out);
    return Bytes(out.bytes().begin(), out.bytes().end());
  }
  // Returns kInternal if the bytes decode.
  Finding Decode(ByteSpan bytes, std::vector<uint16_t>& decoded) const {
    CodecScratch scratch;
    SimilarRows similar = Similar(scratch.context.arena);
    std::fill(similar.values.begin(), similar.values.end(), uint16_t{0xdead});
    std::fill(similar.factors.begin(), similar.factors.end(), kOwnRow);
    ByteReader reader(bytes);
    try {
      DecodeSimilarDifferences(reader, similar, scratch);
    } catch (const Error& error) {
      return error.finding();
    }
    CHECK(reader.at_end());
    CHECK(std::ranges::count(similar.factors, kOwnRow) == 0);
    decoded.assign(similar.values.begin(), similar.values.end());
    return Finding::kInternal;
  }
  // Checks that the values decode, and returns the encoded size.
  size_t ComesBack() const {
    const Bytes bytes = Encoded();
    std::vector<uint16_t> decoded;
    CHECK(Decode(bytes, decoded) == Finding::kInternal);
    CHECK(decoded == values);
    return bytes.size();
  }
};

}  // namespace

TEST_CASE("lists of differences come back", "[ref]") {
  for (const bool bfloat : {false, true}) {
    Case one(200, bfloat);
    CHECK(one.ComesBack() <= 4);
    one.values.front() ^= 1;
    one.values.back() ^= 1;
    CHECK(one.ComesBack() <= 16);
    // One value in a hundred differs, usually by one step: each costs at most twelve bits.
    std::mt19937 random(3);
    size_t differ = 2;
    for (uint16_t& value : one.values) {
      if (random() % 100 != 0) continue;
      value = static_cast<uint16_t>(value + (random() % 8 == 0 ? 5 : 1));
      ++differ;
    }
    CHECK(one.ComesBack() <= differ * 12 / 8);
    CodecScratch scratch;
    CHECK(CountDifferences(one.Similar(scratch.context.arena), 2 * differ) == differ);
    CHECK(CountDifferences(one.Similar(scratch.context.arena), 10) > 10);
  }
}

TEST_CASE("differences of any size come back", "[ref]") {
  // Cases: from the first to the last value and back; zeros of both signs; infinities and NaN.
  const std::vector<std::pair<uint16_t, uint16_t>> pairs = {
      {0xffff, 0x7fff}, {0x7fff, 0xffff}, {0x0000, 0x8000}, {0x8000, 0x0000}, {0x7c00, 0x7e01},
      {0xfc00, 0x3c00}, {0x3c00, 0xbc00}, {0x0001, 0x8001}, {0x7bff, 0x7c00}};
  for (const bool bfloat : {false, true}) {
    Case one(30, bfloat);
    for (size_t i = 0; i < pairs.size(); ++i)
      std::tie(one.expected[70 * i], one.values[70 * i]) = pairs[i];
    for (size_t i = 0; i < one.values.size(); ++i) {
      if (i % 70 != 0) one.values[i] = one.expected[i];
    }
    one.ComesBack();
    // All values differ; then only the first one does.
    Case all(30, bfloat);
    std::mt19937 random(5);
    for (uint16_t& value : all.values) value = static_cast<uint16_t>(random());
    all.ComesBack();
    Case first(3000, bfloat);
    for (size_t i = 0; i < 200; ++i) first.values[i] ^= 1;
    CHECK(first.ComesBack() < 400);
    first.values[60000] ^= 1;  // a change far from the others, which needs the longest gaps
    first.ComesBack();
  }
}

TEST_CASE("lists that no encoder writes are refused", "[ref]") {
  Case one(60);
  std::mt19937 random(3);
  for (uint16_t& value : one.values) value = static_cast<uint16_t>(value ^ (random() % 64 == 0));
  const Bytes good = one.Encoded();
  std::vector<uint16_t> decoded;
  REQUIRE(one.Decode(good, decoded) == Finding::kInternal);
  for (size_t size = 0; size < good.size(); ++size)
    CHECK(one.Decode(ByteSpan(good).first(size), decoded) != Finding::kInternal);
  Bytes bad = good;
  bad[0] = std::byte{24};  // an invalid start
  CHECK(one.Decode(bad, decoded) == Finding::kBadFrame);
  bad = good;
  bad.push_back(std::byte{0});
  CHECK(one.Decode(bad, decoded) == Finding::kBadPayload);
  // Any other byte is refused or decodes to other values.
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {1, 0x10, 0x80, 0xff}) {
      bad = good;
      bad[at] ^= static_cast<std::byte>(flip);
      INFO(at);
      CHECK((one.Decode(bad, decoded) != Finding::kInternal || decoded != one.values));
    }
  }
  // One gap leads beyond the last value, and one difference beyond the last possible one.
  Case few(1);
  few.expected.assign(kColumns, 0x3c00);
  few.values = few.expected;
  const auto list = [](uint8_t start, std::initializer_list<std::pair<uint32_t, uint32_t>> parts) {
    Bytes bytes(16);
    bytes[0] = std::byte{start};
    size_t at = 0;
    for (const auto& [value, count] : parts) {
      for (uint32_t bit = 0; bit < count; ++bit, ++at)
        bytes[1 + at / 8] |= static_cast<std::byte>((value >> bit & 1) << at % 8);
    }
    bytes.resize(1 + (at + 7) / 8);
    return bytes;
  };
  // Without low bits (k = 0), 23 zeros and a 1 select the last value. It changes by 1, then by
  // 2^16.
  REQUIRE(few.Decode(list(0, {{1u << 23, 24}, {0, 1}, {1, 1}}), decoded) == Finding::kInternal);
  CHECK(decoded.back() == 0x3c01);
  CHECK(std::equal(decoded.begin(), decoded.end() - 1, few.expected.begin()));
  CHECK(few.Decode(list(0, {{1u << 23, 24}, {0, 1}, {0, 24}, {0xffff, 16}}), decoded) ==
        Finding::kBadPayload);
  // A last value of 0 belongs to another class, which leaves 23 values. With one low bit (k = 1),
  // 11 zeros, a 1 and the low bit 1 are a gap of 23, so the next value would be a 24th one.
  few.expected.back() = 0;
  CHECK(few.Decode(list(1, {{1u << 11, 12}, {1, 1}}), decoded) == Finding::kBadPayload);
}

}  // namespace kv::ref_sparse_test
