// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/dequantise.h"

#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/convert.h"

namespace kv {
namespace {

constexpr int kBlock = 32;
constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

float LoadHalf(const std::byte* from) { return F16ToF32(LoadLE<uint16_t>(from)); }

// Element i < 16 is the low nibble of byte i, element i >= 16 the high nibble of byte i - 16.
int Nibble(const std::byte* packed, int i) {
  const auto byte = static_cast<int>(packed[i % 16]);
  return i < 16 ? byte & 15 : byte >> 4;
}

void Block(DType dtype, const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  switch (dtype) {
    case DType::kQ8_0:
      for (int i = 0; i < kBlock; ++i)
        out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
      return;
    case DType::kQ4_0:
      for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(Nibble(block + 2, i) - 8);
      return;
    case DType::kQ4_1: {
      const float m = LoadHalf(block + 2);
      for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(Nibble(block + 4, i)) + m;
      return;
    }
    case DType::kQ5_0: {
      const uint32_t high = LoadLE<uint32_t>(block + 2);
      for (int i = 0; i < kBlock; ++i) {
        const int q = Nibble(block + 6, i) | static_cast<int>((high >> i) & 1) << 4;
        out[i] = d * static_cast<float>(q - 16);
      }
      return;
    }
    case DType::kQ5_1: {
      const float m = LoadHalf(block + 2);
      const uint32_t high = LoadLE<uint32_t>(block + 4);
      for (int i = 0; i < kBlock; ++i) {
        const int q = Nibble(block + 8, i) | static_cast<int>((high >> i) & 1) << 4;
        out[i] = d * static_cast<float>(q) + m;
      }
      return;
    }
    case DType::kIQ4_NL:
      for (int i = 0; i < kBlock; ++i)
        out[i] = d * static_cast<float>(kIQ4Values[Nibble(block + 2, i)]);
      return;
    default:
      return;
  }
}

template <typename T>
void Widen(const std::byte* from, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(LoadLE<T>(from + i * sizeof(T)));
}

// OCP 8-bit floats: E4M3 has no infinities and one NaN, E5M2 is a cut binary16.
float F8E4M3ToF32(uint8_t v) {
  const float sign = v & 0x80 ? -1.0f : 1.0f;
  const int exponent = (v >> 3) & 15;
  const int mantissa = v & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

}  // namespace

void ToFloats(DType dtype, std::span<const std::byte> values, std::span<float> out) noexcept {
  const std::byte* from = values.data();
  switch (dtype) {
    case DType::kF32:
      Widen<float>(from, out);
      return;
    case DType::kF64:
      Widen<double>(from, out);
      return;
    case DType::kF16:
      HalfToFloat(from, out.data(), out.size());
      return;
    case DType::kBF16:
      BFloatToFloat(from, out.data(), out.size());
      return;
    case DType::kI8:
      Widen<int8_t>(from, out);
      return;
    case DType::kU8:
    case DType::kBool:
      Widen<uint8_t>(from, out);
      return;
    case DType::kI16:
      Widen<int16_t>(from, out);
      return;
    case DType::kU16:
      Widen<uint16_t>(from, out);
      return;
    case DType::kI32:
      Widen<int32_t>(from, out);
      return;
    case DType::kU32:
      Widen<uint32_t>(from, out);
      return;
    case DType::kI64:
      Widen<int64_t>(from, out);
      return;
    case DType::kU64:
      Widen<uint64_t>(from, out);
      return;
    case DType::kF8E4M3:
      for (size_t i = 0; i < out.size(); ++i) out[i] = F8E4M3ToF32(static_cast<uint8_t>(from[i]));
      return;
    case DType::kF8E5M2:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = F16ToF32(static_cast<uint16_t>(static_cast<uint16_t>(from[i]) << 8));
      }
      return;
    default:
      for (size_t i = 0; i < out.size(); i += kBlock) {
        Block(dtype, from + i / kBlock * Info(dtype).block_bytes, out.data() + i);
      }
  }
}

}  // namespace kv
