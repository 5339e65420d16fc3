// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Conversion of any type to floats. Blocks are decoded by plain loops in ggml's order of
// operations: only q8_0 and 8-bit floats have vector kernels (quantise.cc).

#include "lib/core/kernels/dequantise.h"

#include <cstring>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/quantise.h"

namespace kv {
namespace {

constexpr int kBlock = 32;
// The 16 levels of ggml's IQ4_NL, denser around 0, where most values lie.
constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

float LoadHalf(const std::byte* from) { return F16ToF32(LoadLE<uint16_t>(from)); }

// Returns element i of a block: below 16 the low nibble of byte i, otherwise the high nibble of
// byte i - 16.
int Nibble(const std::byte* packed, int i) {
  const auto byte = static_cast<int>(packed[i % 16]);
  return i < 16 ? byte & 15 : byte >> 4;
}

// Decodes one block in the order of ggml's own operations, so that results agree to the last bit.
void Block(DType dtype, const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  switch (dtype) {
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

}  // namespace

void ToFloats(DType dtype, std::span<const std::byte> values, std::span<float> out) noexcept {
  const std::byte* from = values.data();
  switch (dtype) {
    case DType::kF32:
      return Widen<float>(from, out);
    case DType::kF64:
      return Widen<double>(from, out);
    case DType::kF16:
      return HalfToFloat(from, out.data(), out.size());
    case DType::kBF16:
      return BFloatToFloat(from, out.data(), out.size());
    case DType::kI8:
      return Widen<int8_t>(from, out);
    case DType::kU8:
    case DType::kBool:
      return Widen<uint8_t>(from, out);
    case DType::kI16:
      return Widen<int16_t>(from, out);
    case DType::kU16:
      return Widen<uint16_t>(from, out);
    case DType::kI32:
      return Widen<int32_t>(from, out);
    case DType::kU32:
      return Widen<uint32_t>(from, out);
    case DType::kI64:
      return Widen<int64_t>(from, out);
    case DType::kU64:
      return Widen<uint64_t>(from, out);
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return DequantiseFloat8(dtype, {reinterpret_cast<const uint8_t*>(from), out.size()}, 1,
                              out.data());
    case DType::kQ8_0:
      return DequantiseQ8_0(from, out);
    default:
      for (size_t i = 0; i < out.size(); i += kBlock) {
        Block(dtype, from + i / kBlock * Info(dtype).block_bytes, out.data() + i);
      }
  }
}

void FromFloats(DType dtype, std::span<const float> values, std::byte* out) noexcept {
  if (dtype == DType::kF16) return FloatToHalf(values.data(), out, values.size());
  if (dtype == DType::kBF16) return FloatToBFloat(values.data(), out, values.size());
  if (!values.empty()) std::memcpy(out, values.data(), values.size_bytes());
}

}  // namespace kv
