// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The arithmetic of engines' cache types, with one rounding per operation: a fused multiply-add
// would change codes at ties, which is why the build switches contraction off. Each function
// follows ggml's quantize_row functions step by step, ties and degenerate blocks included.
#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/quantise.h"

namespace kv::ref {
namespace {

constexpr size_t kBlockValues = 32;
constexpr int8_t kIq4Table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
constexpr float kIq4Least = 1e-15f;  // a block of smaller values is stored as zeros
constexpr uint8_t kIq4One = 8;       // index of the level 1

void StoreHalf(float value, std::byte* out) { StoreLE(out, F32ToF16(value)); }

// Truncates as a conversion to int does. NaN and values outside the range of int become 0; ggml
// leaves them undefined.
int Truncated(float value) {
  return value > -2.1e9f && value < 2.1e9f ? static_cast<int>(value) : 0;
}

// Packs element i < 16 into the low nibble of byte i, element i >= 16 into the high nibble of byte
// i - 16.
void PackNibbles(const uint8_t* codes, std::byte* out) {
  for (size_t i = 0; i < 16; ++i)
    out[i] = static_cast<std::byte>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

void PackFifthBits(const uint8_t* codes, std::byte* out) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kBlockValues; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
  StoreLE(out, bits);
}

// Returns the value of largest magnitude with its sign; the first one if there are several.
float Extreme(const float* x) {
  float amax = 0, extreme = 0;
  for (size_t i = 0; i < kBlockValues; ++i) {
    if (amax < std::fabs(x[i])) {
      amax = std::fabs(x[i]);
      extreme = x[i];
    }
  }
  return extreme;
}

void Q8_0(const float* x, Q8Rounding rounding, std::byte* out) {
  float amax = 0;
  for (size_t i = 0; i < kBlockValues; ++i) amax = std::max(amax, std::fabs(x[i]));
  const float d = amax / 127.0f;
  float id = 0;
  if (rounding == Q8Rounding::kAvx) {
    id = amax != 0 ? 127.0f / amax : 0.0f;
  } else {
    id = d != 0 ? 1.0f / d : 0.0f;
  }
  StoreHalf(d, out);
  for (size_t i = 0; i < kBlockValues; ++i) {
    const float scaled = x[i] * id;
    const float whole =
        rounding == Q8Rounding::kReference ? std::round(scaled) : std::nearbyint(scaled);
    out[2 + i] = static_cast<std::byte>(std::clamp(Truncated(whole), -128, 127));
  }
}

// q4_0 and q5_0 have 16 or 32 steps; the extreme value gets the lowest step.
void Symmetric(const float* x, int steps, std::byte* out) {
  const float half = static_cast<float>(steps / 2);
  const float d = Extreme(x) / -half;
  const float id = d != 0 ? 1.0f / d : 0.0f;
  uint8_t codes[kBlockValues];
  for (size_t i = 0; i < kBlockValues; ++i) {
    const float scaled = x[i] * id;
    codes[i] = static_cast<uint8_t>(std::clamp(Truncated(scaled + (half + 0.5f)), 0, steps - 1));
  }
  StoreHalf(d, out);
  if (steps == 32) PackFifthBits(codes, out + 2);
  PackNibbles(codes, out + (steps == 32 ? 6 : 2));
}

// q4_1 and q5_1 count steps above the least value.
void Asymmetric(const float* x, int steps, std::byte* out) {
  float least = x[0], most = x[0];
  for (size_t i = 1; i < kBlockValues; ++i) {
    if (x[i] < least) least = x[i];
    if (x[i] > most) most = x[i];
  }
  const float d = (most - least) / static_cast<float>(steps - 1);
  const float id = d != 0 ? 1.0f / d : 0.0f;
  uint8_t codes[kBlockValues];
  for (size_t i = 0; i < kBlockValues; ++i) {
    const float scaled = (x[i] - least) * id;
    codes[i] = static_cast<uint8_t>(std::clamp(Truncated(scaled + 0.5f), 0, steps - 1));
  }
  StoreHalf(d, out);
  StoreHalf(least, out + 2);
  if (steps == 32) PackFifthBits(codes, out + 4);
  PackNibbles(codes, out + (steps == 32 ? 8 : 4));
}

uint8_t NearestOfIq4(float value) {
  if (!(value > static_cast<float>(kIq4Table[0]))) return 0;
  if (value >= static_cast<float>(kIq4Table[15])) return 15;
  uint8_t above = 1;
  while (value >= static_cast<float>(kIq4Table[above])) ++above;
  const auto low = static_cast<float>(kIq4Table[above - 1]);
  const auto high = static_cast<float>(kIq4Table[above]);
  return value - low < high - value ? static_cast<uint8_t>(above - 1) : above;  // ties go up
}

// Least-squares fit of the scale to given codes, in which each value weighs its own square.
struct Iq4Fit {
  float sum_qx = 0, sum_q2 = 0;

  void Add(float x, uint8_t code) {
    const float w = x * x, q = static_cast<float>(kIq4Table[code]);
    const float wq = w * q;
    sum_qx += wq * x;
    sum_q2 += wq * q;
  }
};

void Iq4Nl(const float* x, bool search, std::byte* out) {
  const float extreme = Extreme(x);
  uint8_t codes[kBlockValues];
  if (std::fabs(extreme) < kIq4Least) {
    std::fill_n(codes, kBlockValues, kIq4One);
    StoreHalf(0, out);
    PackNibbles(codes, out + 2);
    return;
  }
  constexpr int kTried = 7;  // scales tried on each side of the first one
  float d = (search ? -extreme : extreme) / static_cast<float>(kIq4Table[0]);
  float id = 1.0f / d;
  Iq4Fit fit;
  for (size_t i = 0; i < kBlockValues; ++i) {
    codes[i] = NearestOfIq4(id * x[i]);
    fit.Add(x[i], codes[i]);
  }
  d = fit.sum_q2 > 0 ? fit.sum_qx / fit.sum_q2 : 0.0f;
  // Keeps the scale whose weighted fit explains most: sum_qx^2 / sum_q2 is maximal.
  if (search) {
    float best = d * fit.sum_qx;
    for (int step = -kTried; step <= kTried; ++step) {
      id = static_cast<float>(step + kIq4Table[0]) / extreme;
      Iq4Fit tried;
      for (size_t i = 0; i < kBlockValues; ++i) tried.Add(x[i], NearestOfIq4(id * x[i]));
      if (tried.sum_q2 > 0 && tried.sum_qx * tried.sum_qx > best * tried.sum_q2) {
        d = tried.sum_qx / tried.sum_q2;
        best = d * tried.sum_qx;
      }
    }
    id = d != 0 ? 1.0f / d : 0.0f;
    for (size_t i = 0; i < kBlockValues; ++i) codes[i] = NearestOfIq4(id * x[i]);
  }
  StoreHalf(d, out);
  PackNibbles(codes, out + 2);
}

}  // namespace

void QuantiseBlocks(DType dtype, std::span<const float> values, std::byte* out,
                    Q8Rounding rounding) noexcept {
  const size_t bytes = Info(dtype).block_bytes;
  for (size_t i = 0; i + kBlockValues <= values.size(); i += kBlockValues, out += bytes) {
    const float* x = values.data() + i;
    if (dtype == DType::kQ8_0) Q8_0(x, rounding, out);
    if (dtype == DType::kQ4_0) Symmetric(x, 16, out);
    if (dtype == DType::kQ5_0) Symmetric(x, 32, out);
    if (dtype == DType::kQ4_1) Asymmetric(x, 16, out);
    if (dtype == DType::kQ5_1) Asymmetric(x, 32, out);
    if (dtype == DType::kIQ4_NL) Iq4Nl(x, false, out);
  }
}

void QuantiseFloat8(DType dtype, std::span<const float> values, float scale,
                    Float8Overflow overflow, uint8_t* out) noexcept {
  for (size_t i = 0; i < values.size(); ++i) {
    const float scaled = values[i] / scale;
    out[i] = dtype == DType::kF8E4M3 ? F32ToE4M3(scaled, overflow) : F32ToE5M2(scaled, overflow);
  }
}

void DequantiseFloat8(DType dtype, std::span<const uint8_t> codes, float scale,
                      float* out) noexcept {
  for (size_t i = 0; i < codes.size(); ++i) {
    out[i] = (dtype == DType::kF8E4M3 ? E4M3ToF32(codes[i]) : E5M2ToF32(codes[i])) * scale;
  }
}

void DequantiseQ8_0(const std::byte* blocks, std::span<float> out) noexcept {
  for (size_t i = 0; i < out.size(); i += kBlockValues, blocks += 2 + kBlockValues) {
    const float d = F16ToF32(LoadLE<uint16_t>(blocks));
    for (size_t j = 0; j < kBlockValues; ++j)
      out[i + j] = d * static_cast<float>(static_cast<int8_t>(blocks[2 + j]));
  }
}

}  // namespace kv::ref

namespace kv {

void QuantiseIq4NlSearched(std::span<const float> values, std::byte* out) noexcept {
  const size_t bytes = Info(DType::kIQ4_NL).block_bytes;
  for (size_t i = 0; i < values.size(); i += ref::kBlockValues, out += bytes)
    ref::Iq4Nl(values.data() + i, true, out);
}

}  // namespace kv
