// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Integer and float codes of the cache types, each as its engine computes it: KIVI, quanto,
// KVQuant, vLLM's octave, per-token-head and ultraquant types, TurboQuant.
#include "lib/study/quantisation/types/codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numbers>
#include <random>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/hadamard.h"

namespace kv::quant {
namespace {

constexpr double kSparseShare = 0.005;  // share of outliers on each side

float RoundIf(Arithmetic arithmetic, float value) {
  return arithmetic == Arithmetic::kHalf ? ToHalf(value) : value;
}

// Returns the quantile of sorted values, interpolated between neighbours.
double Quantile(const std::vector<float>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double low = sorted[below], high = sorted[above];
  return low + (high - low) * (at - static_cast<double>(below));
}

}  // namespace

GroupCodes StoreKivi(const float* values, size_t count, size_t step, uint32_t bits, float* out) {
  const auto top = static_cast<float>((1u << bits) - 1);
  const Range range = FindRange(values, count, step);
  GroupCodes group{std::vector<uint8_t>(count), ToHalf(ToHalf(range.most - range.least) / top),
                   range.least};
  for (size_t i = 0; i < count; ++i) {
    float code = 0;
    if (group.scale != 0) {
      const float scaled = ToHalf(ToHalf(values[i * step] - group.shift) / group.scale);
      code = std::nearbyint(std::clamp(scaled, 0.0f, top));
    }
    group.codes[i] = static_cast<uint8_t>(IntegerCode(code));
    out[i * step] = ToHalf(ToHalf(code * group.scale) + group.shift);
  }
  return group;
}

GroupCodes StoreQuanto(const float* values, size_t count, size_t step, uint32_t bits,
                       Arithmetic arithmetic, float* out) {
  const auto round = [&](float value) { return RoundIf(arithmetic, value); };
  const auto top = static_cast<float>((1u << bits) - 1);
  const Range range = FindRange(values, count, step);
  GroupCodes group{std::vector<uint8_t>(count), round(round(range.most - range.least) / top),
                   -range.least};
  for (size_t i = 0; i < count; ++i) {
    if (group.scale == 0) {
      out[i * step] = range.least;
      continue;
    }
    const float scaled = round(round(values[i * step] + group.shift) / group.scale);
    const float code = std::clamp(std::nearbyint(scaled), 0.0f, top);
    group.codes[i] = static_cast<uint8_t>(IntegerCode(code));
    out[i * step] = round(round(code * group.scale) - group.shift);
  }
  return group;
}

uint64_t StoreKvQuant(const float* values, size_t count, size_t step, uint32_t bits, bool sparse,
                      float* out) {
  float low = -INFINITY, high = INFINITY;  // values at or beyond these are outliers
  if (sparse) {
    std::vector<float> sorted;  // without NaN, which cannot be ordered
    for (size_t i = 0; i < count; ++i) {
      if (!std::isnan(values[i * step])) sorted.push_back(values[i * step]);
    }
    std::sort(sorted.begin(), sorted.end());
    if (!sorted.empty()) {
      low = static_cast<float>(Quantile(sorted, kSparseShare));
      high = static_cast<float>(Quantile(sorted, 1 - kSparseShare));
    }
  }
  const auto is_outlier = [&](float value) { return value <= low || value >= high; };
  Range range{INFINITY, -INFINITY};
  uint64_t outliers = 0;
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i * step];
    if (is_outlier(value)) {
      ++outliers;
      continue;
    }
    range.least = std::min(range.least, value);
    range.most = std::max(range.most, value);
  }
  const auto top = static_cast<float>((1u << bits) - 1);
  const float factor = top / (range.most - range.least);
  const float offset = std::clamp(std::nearbyint(range.least * factor), -top, 0.0f);
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i * step];
    const float code = std::clamp(std::nearbyint(factor * value - offset), 0.0f, top);
    const float back = (code + offset) / factor;
    out[i * step] = is_outlier(value) ? value : std::isnan(back) ? 0.0f : back;
  }
  return outliers;
}

namespace {

// The Lloyd-Max values of N(0, 1), times 59 (3 bits) or 46 (4 bits) and rounded: the engine stores
// them as these integers, in units of 1/64.
constexpr float kTable3[] = {-127 / 64.0f, -79 / 64.0f, -45 / 64.0f, -14 / 64.0f,
                             14 / 64.0f,   45 / 64.0f,  79 / 64.0f,  127 / 64.0f};
constexpr float kTable4[] = {-126 / 64.0f, -95 / 64.0f, -74 / 64.0f, -58 / 64.0f,
                             -43 / 64.0f,  -30 / 64.0f, -18 / 64.0f, -6 / 64.0f,
                             6 / 64.0f,    18 / 64.0f,  30 / 64.0f,  43 / 64.0f,
                             58 / 64.0f,   74 / 64.0f,  95 / 64.0f,  126 / 64.0f};
// deviation of the values that the tables quantise
constexpr float kUnit3 = 59 / 64.0f, kUnit4 = 46 / 64.0f;
constexpr double kBeyondHalf = 1e6;                 // in binary16 it becomes infinite
constexpr uint64_t kSigns = 0x61f2'b9ca'7d3d'8f14;  // bit d: value d keeps its sign

// Returns the table of 2^bits values, ascending; bits is 3 or 4.
std::span<const float> OctaveTable(uint32_t bits) {
  KV_ASSERT(bits == 3 || bits == 4);
  return bits == 3 ? std::span<const float>(kTable3) : std::span<const float>(kTable4);
}

// Returns the thresholds between indices for values of deviation 1.
std::vector<float> Middles(uint32_t bits) {
  const std::span<const float> table = OctaveTable(bits);
  std::vector<float> middles;
  for (size_t i = 1; i < table.size(); ++i)
    middles.push_back((table[i - 1] + table[i]) / 2 / (bits == 3 ? kUnit3 : kUnit4));
  return middles;
}

}  // namespace

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

namespace {

constexpr float kLeastScale = 1e-6f;  // vLLM's least scale
constexpr uint32_t kZeroPointBits = 15;
constexpr uint32_t kVllmSeed = 0x9E3779B9u;

uint32_t LargestPowerOfTwoDivisor(uint32_t dim) { return dim & (~dim + 1); }

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
    HadamardUnscaled(r.data(), dim, LargestPowerOfTwoDivisor(dim));
    for (float& value : r) value = ToHalf(value);
    const Range range = FindRange(r.data(), dim);
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
  const float size = static_cast<float>(LargestPowerOfTwoDivisor(dim));
  for (size_t i = 0; i < out.size(); i += dim) {
    const uint32_t bits = std::bit_cast<uint32_t>(stored.scales[i / dim]);
    const auto zero = static_cast<float>(bits & kZeroPointBits);
    const float scale = std::bit_cast<float>(bits & ~kZeroPointBits);
    for (uint32_t d = 0; d < dim; ++d) {
      const int byte = stored.codes[(i + d) / 2];
      out[i + d] = (static_cast<float>(d % 2 == 0 ? byte & 15 : byte >> 4) - zero) * scale;
    }
    HadamardUnscaled(&out[i], dim, LargestPowerOfTwoDivisor(dim));
    for (uint32_t d = 0; d < dim; ++d) out[i + d] = signs[d] * (out[i + d] / size);
  }
}

std::vector<float> VllmSigns(uint32_t dim) {
  // Torch's uniform float is the low 24 bits of an output; a value below one half becomes a 1.
  std::mt19937 generator(kVllmSeed);
  std::vector<float> signs(dim);
  for (float& sign : signs) sign = (generator() & 0x800000u) == 0 ? 1.0f : -1.0f;
  return signs;
}

namespace {

constexpr int kRounds = 200, kSteps = 200;
// deviations on each side that the first values span; outer cells end this many times as far out
constexpr double kSpan = 3.5, kBeyond = 3;
constexpr double kSettled = 1e-10;   // Lloyd-Max ends if no value moves further
constexpr float kLeastNorm = 1e-8f;  // the engines' guard against a zero vector

// Returns the mean of a normal variable within [begin, end], by the trapezoid rule.
double MeanWithin(double begin, double end, double deviation) {
  const double step = (end - begin) / kSteps;
  const double height = 1 / std::sqrt(2 * std::numbers::pi * deviation * deviation);
  double mass = 0, moment = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double x = begin + i * step;
    const double weight =
        (i == 0 || i == kSteps ? 0.5 : 1) * height * std::exp(-x * x / (2 * deviation * deviation));
    mass += weight;
    moment += weight * x;
  }
  return moment / mass;
}

void Rotate(float* vector, uint32_t dim) { HadamardScaledFirst(vector, dim, dim); }

}  // namespace

TurboTable LloydMax(uint32_t dim, uint32_t bits) {
  const size_t levels = size_t{1} << bits;
  const double deviation = std::sqrt(1 / static_cast<double>(dim)), edge = kSpan * deviation;
  std::vector<double> values(levels), edges(levels + 1);
  for (size_t i = 0; i < levels; ++i)
    values[i] = -edge + 2 * edge * (static_cast<double>(i) + 0.5) / static_cast<double>(levels);
  edges.front() = -edge * kBeyond;
  edges.back() = edge * kBeyond;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 1; i < levels; ++i) edges[i] = (values[i - 1] + values[i]) / 2;
    double moved = 0;
    for (size_t i = 0; i < levels; ++i) {
      const double next = MeanWithin(edges[i], edges[i + 1], deviation);
      moved = std::max(moved, std::fabs(next - values[i]));
      values[i] = next;
    }
    if (moved < kSettled) break;
  }
  TurboTable table{{values.begin(), values.end()}, {}};
  for (size_t i = 1; i < levels; ++i)
    table.midpoints.push_back(static_cast<float>((values[i - 1] + values[i]) / 2));
  return table;
}

TurboKeys StoreTurboKeys(std::span<const float> values, uint32_t dim, uint32_t bits,
                         std::span<const float> signs) {
  KV_ASSERT(signs.empty() || signs.size() == dim);
  const std::vector<float> middle = LloydMax(dim, bits).midpoints;
  TurboKeys stored{std::vector<uint8_t>(values.size()), {}};
  std::vector<float> y(dim);
  for (size_t i = 0; i < values.size(); i += dim) {
    float squares = 0;
    for (uint32_t d = 0; d < dim; ++d) squares += values[i + d] * values[i + d];
    const float norm = std::sqrt(squares);
    stored.norms.push_back(F32ToF16(norm));
    for (uint32_t d = 0; d < dim; ++d) {
      y[d] = values[i + d] / (norm + kLeastNorm);
      if (!signs.empty()) y[d] *= signs[d];
    }
    Rotate(y.data(), dim);
    for (uint32_t d = 0; d < dim; ++d) {
      const auto above = std::upper_bound(middle.begin(), middle.end(), y[d]);
      stored.indices[i + d] = static_cast<uint8_t>(above - middle.begin());
    }
  }
  return stored;
}

void ReadTurboKeys(const TurboKeys& stored, uint32_t dim, uint32_t bits,
                   std::span<const float> signs, std::span<float> out) {
  const std::vector<float> centroids = LloydMax(dim, bits).centroids;
  for (size_t i = 0; i < out.size(); i += dim) {
    float squares = 0;
    for (uint32_t d = 0; d < dim; ++d) {
      out[i + d] = centroids[stored.indices[i + d]];
      squares += out[i + d] * out[i + d];
    }
    const float norm = F16ToF32(stored.norms[i / dim]), length = std::sqrt(squares);
    for (uint32_t d = 0; d < dim; ++d) out[i + d] = ToHalf(out[i + d] / length * norm);
    Rotate(&out[i], dim);
    for (uint32_t d = 0; d < dim && !signs.empty(); ++d) out[i + d] *= signs[d];
  }
}

TurboValues StoreTurboValues(std::span<const float> values, uint32_t dim, uint32_t bits) {
  const auto top = static_cast<float>((1u << bits) - 1);
  TurboValues stored{std::vector<uint8_t>(values.size()), {}, {}};
  for (size_t i = 0; i < values.size(); i += dim) {
    const Range range = FindRange(&values[i], dim);
    const float scale = std::max((range.most - range.least) / top, kLeastNorm);
    stored.scales.push_back(F32ToF16(scale));
    stored.least.push_back(F32ToF16(range.least));
    for (uint32_t d = 0; d < dim; ++d) {
      const float code = std::trunc((values[i + d] - range.least) / scale + 0.5f);
      stored.codes[i + d] = static_cast<uint8_t>(IntegerCode(std::clamp(code, 0.0f, top)));
    }
  }
  return stored;
}

void ReadTurboValues(const TurboValues& stored, uint32_t dim, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(stored.codes[i]) * F16ToF32(stored.scales[i / dim]) +
             F16ToF32(stored.least[i / dim]);
  }
}

std::vector<float> LmcacheSigns(uint32_t dim, uint32_t layer) {
  std::mt19937 generator(42 + 1337 * layer);
  std::vector<float> signs(dim);
  for (float& sign : signs) sign = (generator() & 1) != 0 ? 1.0f : -1.0f;
  return signs;
}

namespace {

constexpr int kExponentBias = 127, kMostExponent = 254;
constexpr float kScaleOfLargest = 0.156f, kRootOfHalf = 0.70710678f;
constexpr uint8_t kSign = 8;
constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
constexpr float kMiddles[] = {-5,    -3.5f, -2.5f, -1.75f, -1.25f, -0.75f, -0.25f,
                              0.25f, 0.75f, 1.25f, 1.75f,  2.5f,   3.5f,   5};
constexpr int kZero = 7;  // number of codes below 0

// Computes floor(log2(value) + 0.5) without a logarithm, which every machine rounds differently.
int NearestExponent(float value) {
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);
  return mantissa >= kRootOfHalf ? exponent : exponent - 1;
}

uint8_t ChooseExponent(std::span<const float> group) {
  const float wanted = kScaleOfLargest * LargestMagnitude(group);
  if (!std::isfinite(wanted)) return kMostExponent;
  if (wanted == 0) return 0;
  return static_cast<uint8_t>(
      std::clamp(NearestExponent(wanted) + kExponentBias, 0, kMostExponent));
}

float ExponentToScale(uint8_t exponent) { return std::ldexp(1.0f, exponent - kExponentBias); }

// Returns the code of the nearest value, or of the smaller of two equally near. -0 has no code.
uint8_t EncodeFloat4(float value) {
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
      stored.exponents.push_back(ChooseExponent(std::span(vector).subspan(g, kUltraGroup)));
      const float scale = ExponentToScale(stored.exponents.back());
      for (uint32_t d = g; d < g + kUltraGroup; ++d) {
        const uint8_t code = EncodeFloat4(vector[d] / scale);
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
    const float magnitude =
        kMagnitudes[code & 7] * ExponentToScale(stored.exponents[i / kUltraGroup]);
    out[i] = (code & kSign) != 0 ? -magnitude : magnitude;
  }
}

}  // namespace kv::quant
