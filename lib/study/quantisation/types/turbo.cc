// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <numbers>
#include <random>

#include "lib/core/base/error.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/study/quantisation/types/codes.h"

namespace kv::quant {
namespace {

constexpr int kRounds = 200, kSteps = 200;
constexpr double kSpan = 3.5, kBeyond = 3;  // deviations that are cut up, and how far cells reach
constexpr double kSettled = 1e-10;
constexpr float kLeastNorm = 1e-8f;

// The mean of a normal variable within [begin, end], by the trapezoid rule.
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
    const Range range = RangeOf(&values[i], dim);
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

}  // namespace kv::quant
