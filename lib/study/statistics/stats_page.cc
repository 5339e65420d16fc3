// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/stats_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace kv {
namespace {

using report::ChartSeries;
using report::LineChart;

// One series of points for K and one for V, of what `figure` says.
std::vector<ChartSeries> OfBoth(const std::vector<LayerStats>& layers,
                                const std::function<double(const TensorStats&)>& figure) {
  ChartSeries k{"K", {}, false, false, false}, v{"V", {}, false, false, false};
  for (const LayerStats& layer : layers) {
    const auto x = static_cast<double>(layer.layer);
    if (layer.k) k.points.push_back({x, figure(*layer.k)});
    if (layer.v) v.points.push_back({x, figure(*layer.v)});
  }
  return {k, v};
}

LineChart ByLayer(std::string title, std::string y_label) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "layer";
  chart.y_label = std::move(y_label);
  chart.whole_x = true;
  return chart;
}

size_t MostPlanes(const std::vector<LayerStats>& layers) {
  size_t most = 0;
  for (const LayerStats& layer : layers) {
    for (const auto* stats : {&layer.k, &layer.v}) {
      if (*stats) most = std::max(most, (*stats)->plane_entropy_bits.size());
    }
  }
  return most;
}

std::vector<std::vector<std::string>> Rows(const std::vector<LayerStats>& layers) {
  std::vector<std::vector<std::string>> rows = {{"layer", "part", "min", "max", "mean", "deviation",
                                                 "NaN", "Inf", "zeros",
                                                 "bits per byte plane, low to high", "predicted"}};
  for (const LayerStats& layer : layers) {
    for (const auto& [stats, name] : {std::pair{&layer.k, "K"}, {&layer.v, "V"}}) {
      if (!*stats) continue;
      const TensorStats& of = **stats;
      std::string planes;
      for (const double bits : of.plane_entropy_bits) {
        planes += fmt::format("{}{:.2f}", planes.empty() ? "" : " / ", bits);
      }
      rows.push_back({std::to_string(layer.layer), name, fmt::format("{:.4g}", of.min),
                      fmt::format("{:.4g}", of.max), fmt::format("{:.3g}", of.mean),
                      fmt::format("{:.3g}", of.standard_deviation), std::to_string(of.nan_count),
                      std::to_string(of.infinite_count), std::to_string(of.zero_count), planes,
                      fmt::format("{:.3f}x", of.predicted_ratio)});
    }
  }
  return rows;
}

}  // namespace

void AddPlaneEntropies(const std::vector<LayerStats>& layers, report::Page& page) {
  constexpr size_t kMostPlanes = 4;  // blocks of quantised values have dozens
  const size_t planes = MostPlanes(layers);
  if (planes == 0 || planes > kMostPlanes) return;
  LineChart chart = ByLayer("Byte-plane entropy by layer", "bits per byte, of 8");
  chart.y_min = 0;
  chart.y_max = 8;
  for (size_t plane = planes; plane-- > 0;) {
    const std::string name =
        planes == 2 ? (plane == 1 ? "high byte" : "low byte") : fmt::format("byte {}", plane);
    for (ChartSeries& series : OfBoth(layers, [&](const TensorStats& stats) {
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
  LineChart ratios = ByLayer("Predicted ratio by layer", "original / compressed");
  ratios.series = OfBoth(layers, [](const TensorStats& stats) { return stats.predicted_ratio; });
  page.Figure(Render(ratios), "What a coder of the byte planes without context could reach.");
  LineChart ranges = ByLayer("Largest value by layer", "largest |value|");
  ranges.y_min = 0;
  ranges.series = OfBoth(layers, [](const TensorStats& stats) {
    return std::max(std::abs(stats.min), std::abs(stats.max));
  });
  page.Figure(Render(ranges), "Keys often have a few channels of large values: outliers.");
  page.Table(Rows(layers));
}

}  // namespace kv
