// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/study/quantisation/types/codes.h"

namespace kv::quant {
namespace {

// The Lloyd-Max values of N(0, 1), times 59 (3 bits) or 46 (4 bits) and rounded: the engine keeps
// them as such integers, of 64ths.
constexpr float kTable3[] = {-127 / 64.0f, -79 / 64.0f, -45 / 64.0f, -14 / 64.0f,
                             14 / 64.0f,   45 / 64.0f,  79 / 64.0f,  127 / 64.0f};
constexpr float kTable4[] = {-126 / 64.0f, -95 / 64.0f, -74 / 64.0f, -58 / 64.0f,
                             -43 / 64.0f,  -30 / 64.0f, -18 / 64.0f, -6 / 64.0f,
                             6 / 64.0f,    18 / 64.0f,  30 / 64.0f,  43 / 64.0f,
                             58 / 64.0f,   74 / 64.0f,  95 / 64.0f,  126 / 64.0f};
constexpr float kUnit3 = 59 / 64.0f, kUnit4 = 46 / 64.0f;  // the deviation of what they quantise
constexpr double kBeyondHalf = 1e6;                        // infinite as binary16
constexpr uint64_t kSigns = 0x61f2'b9ca'7d3d'8f14;         // bit d: value d keeps its sign

// Where a value of deviation 1 passes from one index to the next.
std::vector<float> Middles(uint32_t bits) {
  const std::span<const float> table = OctaveTable(bits);
  std::vector<float> middles;
  for (size_t i = 1; i < table.size(); ++i)
    middles.push_back((table[i - 1] + table[i]) / 2 / (bits == 3 ? kUnit3 : kUnit4));
  return middles;
}

}  // namespace

std::span<const float> OctaveTable(uint32_t bits) {
  KV_ASSERT(bits == 3 || bits == 4);
  return bits == 3 ? std::span<const float>(kTable3) : std::span<const float>(kTable4);
}

std::vector<float> OctaveSigns() {
  std::vector<float> signs(kOctaveDim);
  for (uint32_t d = 0; d < kOctaveDim; ++d) signs[d] = (kSigns >> d & 1) != 0 ? 1.0f : -1.0f;
  return signs;
}

OctaveCodes StoreOctave(std::span<const float> values, uint32_t bits) {
  KV_ASSERT(values.size() % kOctaveDim == 0);
  const std::vector<float> signs = OctaveSigns(), middles = Middles(bits);
  const std::span<const float> table = OctaveTable(bits);
  OctaveCodes stored{std::vector<uint8_t>(values.size()), {}};
  std::vector<float> x(kOctaveDim);
  for (size_t i = 0; i < values.size(); i += kOctaveDim) {
    for (uint32_t d = 0; d < kOctaveDim; ++d) x[d] = signs[d] * values[i + d];
    HadamardScaledFirst(x.data(), kOctaveDim, kOctaveDim);
    double squares = 0, product = 0;
    for (const float value : x) squares += static_cast<double>(value) * value;
    const auto deviation = static_cast<float>(std::sqrt(squares / kOctaveDim));
    for (uint32_t d = 0; d < kOctaveDim; ++d) {
      const float value = deviation > 0 ? x[d] / deviation : 0;
      const auto index = std::upper_bound(middles.begin(), middles.end(), value) - middles.begin();
      stored.indices[i + d] = static_cast<uint8_t>(index);
      product += static_cast<double>(x[d]) * table[static_cast<size_t>(index)];
    }
    const double scale = product != 0 ? std::min(squares / product, kBeyondHalf) : 0;
    stored.scales.push_back(F32ToF16(static_cast<float>(scale)));
  }
  return stored;
}

void ReadOctave(const OctaveCodes& stored, uint32_t bits, std::span<float> out) {
  KV_ASSERT(stored.indices.size() == out.size());
  const std::vector<float> signs = OctaveSigns();
  const std::span<const float> table = OctaveTable(bits);
  for (size_t i = 0; i < out.size(); i += kOctaveDim) {
    const float scale = F16ToF32(stored.scales[i / kOctaveDim]);
    for (uint32_t d = 0; d < kOctaveDim; ++d) out[i + d] = table[stored.indices[i + d]] * scale;
    HadamardScaledFirst(&out[i], kOctaveDim, kOctaveDim);
    for (uint32_t d = 0; d < kOctaveDim; ++d) out[i + d] *= signs[d];
  }
}

}  // namespace kv::quant
