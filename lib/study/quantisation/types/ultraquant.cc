// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "lib/core/base/error.h"
#include "lib/study/quantisation/types/codes.h"

namespace kv::quant {
namespace {

constexpr int kExponentBias = 127, kMostExponent = 254;
constexpr float kScaleOfLargest = 0.156f, kRootOfHalf = 0.70710678f;
constexpr uint8_t kSign = 8;
constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
constexpr float kMiddles[] = {-5,    -3.5f, -2.5f, -1.75f, -1.25f, -0.75f, -0.25f,
                              0.25f, 0.75f, 1.25f, 1.75f,  2.5f,   3.5f,   5};
constexpr int kZero = 7;  // codes below 0 are as many

// floor(log2(value) + 0.5), without a logarithm that each machine rounds its own way.
int NearestExponent(float value) {
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);
  return mantissa >= kRootOfHalf ? exponent : exponent - 1;
}

uint8_t ExponentOf(std::span<const float> group) {
  const float wanted = kScaleOfLargest * LargestMagnitude(group);
  if (!std::isfinite(wanted)) return kMostExponent;
  if (wanted == 0) return 0;
  return static_cast<uint8_t>(
      std::clamp(NearestExponent(wanted) + kExponentBias, 0, kMostExponent));
}

float ScaleOf(uint8_t exponent) { return std::ldexp(1.0f, exponent - kExponentBias); }

// The nearest value's code; midway, the lower value's. There is no -0.
uint8_t CodeOf(float value) {
  const auto index = static_cast<int>(
      std::lower_bound(std::begin(kMiddles), std::end(kMiddles), value) - std::begin(kMiddles));
  return static_cast<uint8_t>(index < kZero ? kSign | (kZero - index) : index - kZero);
}

void Rotate(std::span<const float> vector, std::span<float> out) {
  const auto dim = static_cast<uint32_t>(vector.size());
  const float entry = 1 / std::sqrt(static_cast<float>(dim));
  for (uint32_t row = 0; row < dim; ++row) {
    float sum = 0;
    for (uint32_t d = 0; d < dim; ++d)
      sum += vector[d] * (std::popcount(row & d) % 2 == 0 ? entry : -entry);
    out[row] = sum;
  }
}

}  // namespace

UltraCodes StoreUltra(std::span<const float> values, uint32_t dim, bool rotate) {
  KV_ASSERT(std::has_single_bit(dim) && dim % kUltraGroup == 0 && values.size() % dim == 0);
  UltraCodes stored{std::vector<uint8_t>(values.size() / 2), {}};
  std::vector<float> vector(dim);
  for (size_t i = 0; i < values.size(); i += dim) {
    const auto given = values.subspan(i, dim);
    if (rotate) {
      Rotate(given, vector);
    } else {
      std::copy(given.begin(), given.end(), vector.begin());
    }
    for (uint32_t g = 0; g < dim; g += kUltraGroup) {
      stored.exponents.push_back(ExponentOf(std::span(vector).subspan(g, kUltraGroup)));
      const float scale = ScaleOf(stored.exponents.back());
      for (uint32_t d = g; d < g + kUltraGroup; ++d) {
        const uint8_t code = CodeOf(vector[d] / scale);
        stored.codes[(i + d) / 2] |= static_cast<uint8_t>(d % 2 == 0 ? code : code << 4);
      }
    }
  }
  return stored;
}

void ReadUltra(const UltraCodes& stored, std::span<float> out) {
  KV_ASSERT(stored.codes.size() * 2 == out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto code = static_cast<uint8_t>(stored.codes[i / 2] >> (i % 2 * 4) & 15);
    const float magnitude = kMagnitudes[code & 7] * ScaleOf(stored.exponents[i / kUltraGroup]);
    out[i] = (code & kSign) != 0 ? -magnitude : magnitude;
  }
}

}  // namespace kv::quant
