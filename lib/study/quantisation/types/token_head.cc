// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <bit>
#include <random>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/study/quantisation/types/codes.h"

namespace kv::quant {
namespace {

constexpr float kLeastScale = 1e-6f;
constexpr uint32_t kZeroPointBits = 15;
constexpr uint32_t kVllmSeed = 0x9E3779B9u;

uint32_t PieceOf(uint32_t dim) { return dim & (~dim + 1); }

}  // namespace

TokenHeadCodes StoreInt8(std::span<const float> values, uint32_t dim) {
  TokenHeadCodes stored{std::vector<uint8_t>(values.size()), {}};
  for (size_t i = 0; i < values.size(); i += dim) {
    const float scale = std::max(LargestMagnitude(values.subspan(i, dim)) / 127.0f, kLeastScale);
    const float inverse = 1.0f / scale;
    stored.scales.push_back(scale);
    for (size_t j = i; j < i + dim; ++j) {
      const float code = std::clamp(RoundByHalf(values[j] * inverse), -128.0f, 127.0f);
      const int whole = std::isnan(code) ? 0 : static_cast<int>(code);
      stored.codes[j] = static_cast<uint8_t>(static_cast<int8_t>(whole));
    }
  }
  return stored;
}

void ReadInt8(const TokenHeadCodes& stored, uint32_t dim, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(static_cast<int8_t>(stored.codes[i])) * stored.scales[i / dim];
}

TokenHeadCodes StoreFloat8(std::span<const float> values, uint32_t dim) {
  TokenHeadCodes stored{std::vector<uint8_t>(values.size()), {}};
  for (size_t i = 0; i < values.size(); i += dim) {
    const float scale = std::max(LargestMagnitude(values.subspan(i, dim)) / kE4M3Max, kLeastScale);
    const float inverse = 1.0f / scale;
    stored.scales.push_back(scale);
    for (size_t j = i; j < i + dim; ++j)
      stored.codes[j] = F32ToE4M3(values[j] * inverse, Float8Overflow::kSaturate);
  }
  return stored;
}

void ReadFloat8(const TokenHeadCodes& stored, uint32_t dim, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = E4M3ToF32(stored.codes[i]) * stored.scales[i / dim];
}

TokenHeadCodes StoreInt4(std::span<const float> values, uint32_t dim,
                         std::span<const float> signs) {
  KV_ASSERT(signs.size() == dim && dim % 2 == 0);
  TokenHeadCodes stored{std::vector<uint8_t>(values.size() / 2), {}};
  std::vector<float> r(dim);
  for (size_t i = 0; i < values.size(); i += dim) {
    for (uint32_t d = 0; d < dim; ++d) r[d] = signs[d] * values[i + d];
    HadamardUnscaled(r.data(), dim, PieceOf(dim));
    for (float& value : r) value = ToHalf(value);
    const Range range = RangeOf(r.data(), dim);
    const float scale = std::max((range.most - range.least) / 15.0f, kLeastScale);
    const float zero = std::clamp(RoundByHalf(-range.least / scale), 0.0f, 15.0f);
    const float inverse = 1.0f / scale;
    const uint32_t bits = std::bit_cast<uint32_t>(scale) & ~kZeroPointBits;
    stored.scales.push_back(std::bit_cast<float>(bits | IntegerCode(zero)));
    for (uint32_t d = 0; d < dim; ++d) {
      const auto code = static_cast<uint8_t>(
          IntegerCode(std::clamp(RoundByHalf(r[d] * inverse + zero), 0.0f, 15.0f)));
      stored.codes[(i + d) / 2] |= static_cast<uint8_t>(d % 2 == 0 ? code : code << 4);
    }
  }
  return stored;
}

void ReadInt4(const TokenHeadCodes& stored, uint32_t dim, std::span<const float> signs,
              std::span<float> out) {
  const float size = static_cast<float>(PieceOf(dim));
  for (size_t i = 0; i < out.size(); i += dim) {
    const uint32_t bits = std::bit_cast<uint32_t>(stored.scales[i / dim]);
    const auto zero = static_cast<float>(bits & kZeroPointBits);
    const float scale = std::bit_cast<float>(bits & ~kZeroPointBits);
    for (uint32_t d = 0; d < dim; ++d) {
      const int byte = stored.codes[(i + d) / 2];
      out[i + d] = (static_cast<float>(d % 2 == 0 ? byte & 15 : byte >> 4) - zero) * scale;
    }
    HadamardUnscaled(&out[i], dim, PieceOf(dim));
    for (uint32_t d = 0; d < dim; ++d) out[i + d] = signs[d] * (out[i + d] / size);
  }
}

std::vector<float> VllmSigns(uint32_t dim) {
  // A uniform float is made of the low 24 bits of an output; below one half it is a 1.
  std::mt19937 generator(kVllmSeed);
  std::vector<float> signs(dim);
  for (float& sign : signs) sign = (generator() & 0x800000u) == 0 ? 1.0f : -1.0f;
  return signs;
}

}  // namespace kv::quant
