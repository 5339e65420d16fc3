// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/tensor_stats.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/half.h"
#include "lib/core/kernels/counts.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

constexpr uint64_t kSliceBytes = 4 << 20;

using Histogram = std::array<uint64_t, 256>;

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Calls `body` with the rows of the tensor, a few MiB at a time.
template <typename Body>
void ForEachSlice(const Snapshot& snapshot, const KvTensor& tensor, Body body) {
  const uint64_t tokens = tensor.tokens();
  const uint64_t step =
      std::max<uint64_t>(1, kSliceBytes / std::max<uint64_t>(1, tensor.row_bytes()));
  for (uint64_t begin = 0; begin < tokens; begin += step) {
    const uint64_t count = std::min(step, tokens - begin);
    body(Gather(tensor, begin, count, Order::kTokenHeadDim), count);
    DropTokens(snapshot, tensor, begin, count);
  }
  DropTensor(snapshot, tensor);
}

void AddEntropies(const std::vector<Histogram>& planes, TensorStats& stats) {
  double coded_bits = 0;
  for (const Histogram& plane : planes) {
    stats.plane_entropy_bits.push_back(EntropyBits(plane));
    stats.plane_symbols.push_back(
        static_cast<uint32_t>(256 - std::count(plane.begin(), plane.end(), uint64_t{0})));
    coded_bits += stats.plane_entropy_bits.back();
  }
  const double raw_bits = 8.0 * static_cast<double>(planes.size());
  if (coded_bits > 0) stats.predicted_ratio = std::max(1.0, raw_bits / coded_bits);
}

}  // namespace

double EntropyBits(const Histogram& histogram) {
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

TensorStats ComputePatternStats(DType dtype, const std::vector<uint64_t>& patterns) {
  KV_ASSERT(IsHalf(dtype) && patterns.size() == 65536);
  Moments moments;
  std::vector<Histogram> planes(2, Histogram{});
  for (uint32_t pattern = 0; pattern < patterns.size(); ++pattern) {
    const uint64_t count = patterns[pattern];
    const auto bits = static_cast<uint16_t>(pattern);
    moments.Add(dtype == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits), count);
    planes[0][pattern & 0xff] += count;
    planes[1][pattern >> 8] += count;
  }
  TensorStats stats{moments.Finish(), {}, {}, 0, 1};
  stats.bytes = 2 * stats.values;
  AddEntropies(planes, stats);
  return stats;
}

TensorStats StatsOf(const Snapshot& snapshot, const KvTensor& tensor, bool is_value) {
  if (IsHalf(tensor.dtype)) {
    std::vector<uint64_t> patterns(65536);
    ForEachSlice(snapshot, tensor, [&](const Bytes& raw, uint64_t) {
      CountWords(raw.data(), raw.size() / 2, patterns.data());
    });
    return ComputePatternStats(tensor.dtype, patterns);
  }
  Moments moments;
  const uint32_t unit = tensor.unit_bytes();
  std::vector<Histogram> planes(unit, Histogram{});
  std::vector<float> values;
  uint64_t bytes = 0;
  ForEachSlice(snapshot, tensor, [&](const Bytes& raw, uint64_t tokens) {
    bytes += raw.size();
    for (size_t i = 0; i < raw.size(); i += unit) {
      for (uint32_t b = 0; b < unit; ++b) ++planes[b][static_cast<size_t>(raw[i + b])];
    }
    values.resize(tokens * tensor.channels());
    ToFloats(tensor.dtype, raw, values);
    if (tensor.heads_known) UndoHadamard(snapshot, tensor, is_value, values);
    for (const float value : values) moments.Add(value);
  });
  TensorStats stats{moments.Finish(), {}, {}, bytes, 1};
  AddEntropies(planes, stats);
  return stats;
}

const Fields<TensorStats>& TensorStatsFields() {
  static const Value entropy = Value::Object{{"type", "number"}, {"minimum", 0}, {"maximum", 8}};
  static const Fields<TensorStats> fields = {
      Fields<TensorStats>::Inline([](const TensorStats& of) -> const ValueSummary& { return of; },
                                  ValueSummaryFields()),
      {"plane_entropy_bits",
       "Entropy of each byte plane in bits per byte, 0 to 8",
       &TensorStats::plane_entropy_bits,
       {.schema = Value::Object{{"type", "array"}, {"items", entropy}}}},
      {"predicted_ratio", "Lossless ratio that the entropies predict, original over compressed",
       &TensorStats::predicted_ratio, AtLeast(1)}};
  return fields;
}

}  // namespace kv
