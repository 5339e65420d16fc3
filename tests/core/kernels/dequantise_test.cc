// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/dequantise.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"

namespace kv::dequantise_test {
namespace {

std::vector<float> Floats(DType dtype, ByteSpan bytes) {
  const DTypeInfo& info = Info(dtype);
  std::vector<float> out(bytes.size() / info.block_bytes * info.block_elements);
  ToFloats(dtype, bytes, out);
  return out;
}

// Element i of a block has the code `code(i)`, packed as ggml does: i < 16 in the low nibbles.
template <typename Code>
void PackNibbles(ByteWriter& out, const Code& code) {
  for (int i = 0; i < 16; ++i)
    out.U8(static_cast<uint8_t>((code(i) & 15) | (code(i + 16) & 15) << 4));
}

template <typename Code>
void PackFifthBits(ByteWriter& out, const Code& code) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(code(i) >> 4 & 1) << i;
  out.U32(bits);
}

const float kScale = 0.375f, kMin = -2.5f;  // exact in binary16

void CheckBlocks(DType dtype, const ByteWriter& block, const std::vector<float>& expected) {
  INFO(Name(dtype));
  REQUIRE(block.size() == Info(dtype).block_bytes);
  // There are two blocks, at an odd address: blocks are 18 to 34 bytes and never aligned.
  ByteWriter twice;
  twice.U8(0);
  twice.Append(block.bytes());
  twice.Append(block.bytes());
  const std::vector<float> got = Floats(dtype, twice.bytes().subspan(1));
  REQUIRE(got.size() == 64);
  for (size_t i = 0; i < 64; ++i) {
    INFO(i);
    CHECK(got[i] == expected[i % 32]);
  }
}

TEST_CASE("block types dequantise to scale times code", "[dequantise]") {
  const auto code4 = [](int i) { return (i * 7 + 3) % 16; };
  const auto code5 = [](int i) { return (i * 13 + 5) % 32; };
  const auto expect = [](auto value) {
    std::vector<float> values;
    for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(value(i)));
    return values;
  };
  ByteWriter q8, q4_0, q4_1, q5_0, q5_1, iq4;
  q8.U16(F32ToF16(kScale));
  for (int i = 0; i < 32; ++i) q8.U8(static_cast<uint8_t>(i * 8 - 128));
  CheckBlocks(DType::kQ8_0, q8, expect([](int i) { return kScale * (i * 8 - 128); }));

  q4_0.U16(F32ToF16(kScale));
  PackNibbles(q4_0, code4);
  CheckBlocks(DType::kQ4_0, q4_0, expect([&](int i) { return kScale * (code4(i) - 8); }));

  q4_1.U16(F32ToF16(kScale));
  q4_1.U16(F32ToF16(kMin));
  PackNibbles(q4_1, code4);
  CheckBlocks(DType::kQ4_1, q4_1, expect([&](int i) { return kScale * code4(i) + kMin; }));

  q5_0.U16(F32ToF16(kScale));
  PackFifthBits(q5_0, code5);
  PackNibbles(q5_0, code5);
  CheckBlocks(DType::kQ5_0, q5_0, expect([&](int i) { return kScale * (code5(i) - 16); }));

  q5_1.U16(F32ToF16(kScale));
  q5_1.U16(F32ToF16(kMin));
  PackFifthBits(q5_1, code5);
  PackNibbles(q5_1, code5);
  CheckBlocks(DType::kQ5_1, q5_1, expect([&](int i) { return kScale * code5(i) + kMin; }));

  constexpr int kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
  iq4.U16(F32ToF16(kScale));
  PackNibbles(iq4, code4);
  CheckBlocks(DType::kIQ4_NL, iq4, expect([&](int i) { return kScale * kTable[code4(i)]; }));
}

template <typename T>
void CheckWidening(DType dtype, const std::vector<T>& values) {
  Bytes bytes(1 + values.size() * sizeof(T));  // misaligned by one
  for (size_t i = 0; i < values.size(); ++i) StoreLE(bytes.data() + 1 + i * sizeof(T), values[i]);
  const std::vector<float> got = Floats(dtype, ByteSpan(bytes).subspan(1));
  REQUIRE(got.size() == values.size());
  for (size_t i = 0; i < values.size(); ++i) CHECK(got[i] == static_cast<float>(values[i]));
}

TEST_CASE("numbers widen to the nearest float", "[dequantise]") {
  CheckWidening<float>(DType::kF32, {0.0f, -1.5f, 3e38f});
  CheckWidening<double>(DType::kF64, {0.1, -1e300, 2.5});
  CheckWidening<int8_t>(DType::kI8, {-128, 0, 127});
  CheckWidening<uint8_t>(DType::kU8, {0, 128, 255});
  CheckWidening<uint8_t>(DType::kBool, {0, 1});
  CheckWidening<int16_t>(DType::kI16, {-32768, 32767});
  CheckWidening<uint16_t>(DType::kU16, {0, 65535});
  CheckWidening<int32_t>(DType::kI32, {INT32_MIN, 16777217});
  CheckWidening<uint32_t>(DType::kU32, {0, UINT32_MAX});
  CheckWidening<int64_t>(DType::kI64, {INT64_MIN, 1});
  CheckWidening<uint64_t>(DType::kU64, {0, UINT64_MAX});
}

TEST_CASE("eight-bit floats follow the OCP tables", "[dequantise]") {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    INFO(bits);
    const Bytes one(1, static_cast<std::byte>(bits));
    const int sign = bits & 0x80 ? -1 : 1;
    {
      const int exponent = static_cast<int>(bits >> 3 & 15), mantissa = static_cast<int>(bits & 7);
      const float got = Floats(DType::kF8E4M3, one)[0];
      if (exponent == 15 && mantissa == 7) {
        CHECK(std::isnan(got));
      } else {
        const double value = exponent == 0 ? mantissa / 8.0 * std::pow(2, -6)
                                           : (1 + mantissa / 8.0) * std::pow(2, exponent - 7);
        CHECK(got == static_cast<float>(sign * value));
      }
    }
    const int exponent = static_cast<int>(bits >> 2 & 31), mantissa = static_cast<int>(bits & 3);
    const float got = Floats(DType::kF8E5M2, one)[0];
    if (exponent == 31) {
      CHECK((mantissa != 0 ? std::isnan(got) : std::isinf(got)));
    } else {
      const double value = exponent == 0 ? mantissa / 4.0 * std::pow(2, -14)
                                         : (1 + mantissa / 4.0) * std::pow(2, exponent - 15);
      CHECK(got == static_cast<float>(sign * value));
    }
  }
}

}  // namespace
}  // namespace kv::dequantise_test
