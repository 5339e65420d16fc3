// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/metrics/tensor_stats.h"

#include <algorithm>
#include <cmath>

#include "lib/kernels/dequantise.h"
#include "lib/snapshot/layout.h"

namespace kv {
namespace {

constexpr uint64_t kSliceBytes = 4 << 20;

struct Moments {
  uint64_t finite = 0;
  double mean = 0, sum_squares = 0;  // Welford

  void Add(double value) {
    ++finite;
    const double delta = value - mean;
    mean += delta / static_cast<double>(finite);
    sum_squares += delta * (value - mean);
  }
};

void AddValues(std::span<const float> values, TensorStats& stats, Moments& moments) {
  for (const float value : values) {
    if (std::isnan(value)) {
      ++stats.nan_count;
    } else if (std::isinf(value)) {
      ++stats.infinite_count;
    } else {
      if (moments.finite == 0) stats.min = stats.max = value;
      stats.min = std::min<double>(stats.min, value);
      stats.max = std::max<double>(stats.max, value);
      stats.zero_count += value == 0;
      moments.Add(value);
    }
  }
}

}  // namespace

double EntropyBits(const std::array<uint64_t, 256>& histogram) {
  double total = 0;
  for (const uint64_t count : histogram) total += static_cast<double>(count);
  double bits = 0;
  for (const uint64_t count : histogram) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / total;
    bits -= p * std::log2(p);
  }
  return bits;
}

TensorStats StatsOf(const Snapshot& snapshot, const KvTensor& tensor) {
  TensorStats stats;
  Moments moments;
  const uint32_t planes = tensor.unit_bytes();
  std::vector<std::array<uint64_t, 256>> histograms(planes);
  for (auto& histogram : histograms) histogram.fill(0);

  const uint64_t tokens = tensor.tokens();
  const uint64_t step =
      std::max<uint64_t>(1, kSliceBytes / std::max<uint64_t>(1, tensor.row_bytes()));
  std::vector<float> values;
  for (uint64_t begin = 0; begin < tokens; begin += step) {
    const uint64_t count = std::min(step, tokens - begin);
    const Bytes raw = Gather(tensor, begin, count, Order::kTokenHeadDim);
    for (size_t i = 0; i < raw.size(); ++i) ++histograms[i % planes][static_cast<size_t>(raw[i])];
    values.resize(count * tensor.channels());
    ToFloats(tensor.dtype, raw, values);
    AddValues(values, stats, moments);
    stats.values += values.size();
    stats.bytes += raw.size();
  }
  for (const StridedPiece& piece : tensor.pieces) {
    if (const SourceFile* file = snapshot.source.FileOf(piece.data)) {
      file->data->Drop(file->data->OffsetOf(piece.data), piece.tokens * tensor.row_bytes());
    }
  }
  stats.mean = moments.mean;
  if (moments.finite > 0) {
    stats.standard_deviation = std::sqrt(moments.sum_squares / static_cast<double>(moments.finite));
  }
  double coded_bits = 0;
  for (const auto& histogram : histograms) {
    stats.plane_entropy_bits.push_back(EntropyBits(histogram));
    coded_bits += stats.plane_entropy_bits.back();
  }
  if (coded_bits > 0) stats.predicted_ratio = std::max(1.0, 8.0 * planes / coded_bits);
  return stats;
}

}  // namespace kv
