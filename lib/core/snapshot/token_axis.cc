// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/token_axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"

namespace kv {
namespace {

constexpr uint64_t kReach = 8;      // distances compared
constexpr uint64_t kStarts = 2048;  // runs of kReach pairs, over all lines of an axis
constexpr uint64_t kLines = 32;     // places on the other axis, at least where it has so many
constexpr uint64_t kDims = 512;
constexpr double kMeanWeight = 4;
constexpr double kUneven = 0.01 * 0.01;
constexpr double kTiny = 1e-12;

struct Resemblance {
  double q = 0;
  double variance = 0;  // of log q
  bool is_measured = false;
};

// Reads rows of one tensor as unit vectors.
class UnitRows {
 public:
  explicit UnitRows(const TensorView& values)
      : values_(values),
        dims_(std::min(values.shape[2], kDims)),
        raw_(dims_ * Info(values.dtype).block_bytes) {}

  uint64_t dims() const { return dims_; }

  // False for a row without direction: zeros, or not finite.
  bool Read(uint64_t first, uint64_t second, std::span<float> out) {
    const uint64_t unit = Info(values_.dtype).block_bytes;
    const std::byte* from = values_.data + first * values_.strides[0] + second * values_.strides[1];
    for (uint64_t i = 0; i < dims_; ++i)
      std::memcpy(&raw_[i * unit], from + i * values_.strides[2], unit);
    ToFloats(values_.dtype, raw_, out);
    double squares = 0;
    for (const float value : out) squares += double{value} * value;
    if (!(squares > 0) || !std::isfinite(squares)) return false;
    const double scale = 1 / std::sqrt(squares);
    for (float& value : out) value = static_cast<float>(value * scale);
    return true;
  }

 private:
  const TensorView& values_;
  uint64_t dims_;
  Bytes raw_;
};

// Cosines by the distance of their rows.
class Cosines {
 public:
  void Add(uint64_t distance, double cosine) {
    Sums& sums = by_distance_[distance - 1];
    ++sums.pairs;
    sums.linear += cosine;
    sums.squared += cosine * cosine;
  }
  Resemblance Result() const {
    double linear = 0, squared = 0, distances = 0, pairs = 0;
    for (const Sums& sums : by_distance_) {
      if (sums.pairs == 0) continue;
      const auto count = static_cast<double>(sums.pairs);
      linear += sums.linear / count;
      squared += sums.squared / count;
      pairs += count;
      ++distances;
    }
    if (distances == 0) return {};
    const double mean = std::max(0.0, linear / distances);
    return {squared / distances + kMeanWeight * mean * mean, 2 / pairs, true};
  }

 private:
  struct Sums {
    uint64_t pairs = 0;
    double linear = 0, squared = 0;
  };
  std::array<Sums, kReach> by_distance_;
};

Resemblance AlongAxis(UnitRows& rows, const TensorView& values, int axis) {
  const uint64_t extent = values.shape[axis], others = values.shape[1 - axis];
  if (extent == 1) return {1 / static_cast<double>(rows.dims()), 0, true};
  const uint64_t lines = std::min(others, std::max(kLines, kStarts / (extent - 1)));
  const uint64_t starts = std::min(extent - 1, kStarts / lines);
  const uint64_t dims = rows.dims();
  std::vector<float> window((kReach + 1) * dims);
  const auto row = [&](uint64_t i) { return std::span(window).subspan(i * dims, dims); };
  Cosines cosines;
  for (uint64_t line = 0; line < lines; ++line) {
    const uint64_t other = line * others / lines;
    for (uint64_t k = 0; k < starts; ++k) {
      const uint64_t start = k * (extent - 1) / starts;
      const auto read = [&](uint64_t i) {
        return axis == 0 ? rows.Read(start + i, other, row(i))
                         : rows.Read(other, start + i, row(i));
      };
      if (!read(0)) continue;
      for (uint64_t i = 1; i <= kReach && start + i < extent; ++i) {
        if (!read(i)) continue;
        double cosine = 0;
        for (uint64_t d = 0; d < dims; ++d) cosine += double{row(0)[d]} * row(i)[d];
        cosines.Add(i, cosine);
      }
    }
  }
  return cosines.Result();
}

}  // namespace

double TokenAxis::margin() const {
  return is_measured ? std::abs(log_ratio) / std::sqrt(variance) : 0;
}

std::optional<int> TokenAxis::axis() const {
  if (margin() < kDecidingMargin) return std::nullopt;
  return log_ratio > 0 ? 0 : 1;
}

void TokenAxis::Add(const TokenAxis& other) {
  if (!other.is_measured) return;
  log_ratio += other.log_ratio;
  variance += other.variance;
  is_measured = true;
}

TokenAxis FindTokenAxis(const TensorView& values) {
  KV_ASSERT(values.rank() == 3);
  const bool is_empty =
      std::find(values.shape.begin(), values.shape.end(), 0) != values.shape.end();
  if (is_empty || values.data == nullptr || !Info(values.dtype).is_float ||
      IsBlockQuantised(values.dtype)) {
    return {};
  }
  UnitRows rows(values);
  const Resemblance first = AlongAxis(rows, values, 0), second = AlongAxis(rows, values, 1);
  if (!first.is_measured || !second.is_measured) return {};
  return {std::log(std::max(first.q, kTiny) / std::max(second.q, kTiny)),
          first.variance + second.variance + kUneven, true};
}

}  // namespace kv
