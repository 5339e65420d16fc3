// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/tensor_stats.h"

#include <fmt/format.h>

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
  KV_ASSERT(IsHalfFloat(dtype) && patterns.size() == 65536);
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

TensorStats MeasureTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value) {
  if (IsHalfFloat(tensor.dtype)) {
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
      {"predicted_ratio", "Lossless ratio that the entropies predict, original / compressed",
       &TensorStats::predicted_ratio, AtLeast(1)}};
  return fields;
}

namespace {

using report::ChartSeries;
using report::LineChart;

size_t MostPlanes(const std::vector<LayerStats>& layers) {
  size_t most = 0;
  for (const LayerStats& layer : layers) {
    for (const auto* stats : {&layer.k, &layer.v}) {
      if (*stats) most = std::max(most, (*stats)->plane_entropy_bits.size());
    }
  }
  return most;
}

std::string PlanesText(const TensorStats& stats) {
  std::string planes;
  for (const double bits : stats.plane_entropy_bits)
    planes += fmt::format("{}{:.2f}", planes.empty() ? "" : " ", bits);
  return planes;
}

}  // namespace

TextTable StatsTable(const std::vector<LayerStats>& layers) {
  static const Fields<TensorStats> columns = {
      Fields<TensorStats>::Inline([](const TensorStats& of) -> const ValueSummary& { return of; },
                                  ValueSummaryFields()),
      Fields<TensorStats>::Column("zeros", &TensorStats::zero_count),
      Fields<TensorStats>::Column("bits per byte plane", PlanesText),
      Fields<TensorStats>::Column("predicted", &TensorStats::predicted_ratio, format::AsFactor)};
  return TableByTensor(columns, layers, {"k", "v"});
}

void AddPlaneEntropies(const std::vector<LayerStats>& layers, report::Page& page) {
  constexpr size_t kMostPlanes = 4;  // blocks of quantised values have dozens
  const size_t planes = MostPlanes(layers);
  if (planes == 0 || planes > kMostPlanes) return;
  LineChart chart = report::ChartByLayer("Byte-plane entropy by layer", "bits per byte, of 8", 0);
  chart.y_max = 8;
  for (size_t plane = planes; plane-- > 0;) {
    const std::string name =
        planes == 2 ? (plane == 1 ? "high byte" : "low byte") : fmt::format("byte {}", plane);
    for (ChartSeries& series : report::SeriesOfTensors(layers, [&](const TensorStats& stats) {
           return plane < stats.plane_entropy_bits.size() ? stats.plane_entropy_bits[plane] : NAN;
         })) {
      if (series.points.empty()) continue;
      series.name = (planes == 1 ? series.name : series.name + " " + name);
      chart.series.push_back(std::move(series));
    }
  }
  page.Figure(Render(chart),
              "Entropy of each byte of a value, without context: a byte with 8 bits cannot shrink. "
              "The high byte of a float holds sign and exponent.");
}

void AddStats(const std::vector<LayerStats>& layers, report::Page& page) {
  AddPlaneEntropies(layers, page);
  LineChart ratios = report::ChartByLayer("Predicted ratio by layer", "original / compressed");
  ratios.y_unit = report::Unit::kFactor;
  ratios.series = report::SeriesOfTensors(
      layers, [](const TensorStats& stats) { return stats.predicted_ratio; });
  page.Figure(Render(ratios), "What a coder of the byte planes without context could reach.");
  LineChart ranges = report::ChartByLayer("Largest value by layer", "largest |value|", 0);
  ranges.series = report::SeriesOfTensors(layers, [](const TensorStats& stats) {
    return std::max(std::abs(stats.min), std::abs(stats.max));
  });
  page.Figure(Render(ranges), "Keys often have a few channels of large values: outliers.");
  page.Table(StatsTable(layers));
}

}  // namespace kv
