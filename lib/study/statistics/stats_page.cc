// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/stats_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv {
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
              "Entropy of each byte of a value, without context: at 8 bits there is nothing to "
              "save. Of floats the high byte holds the exponent.");
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
