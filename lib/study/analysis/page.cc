// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/study/analysis/report.h"
#include "lib/study/statistics/stats_page.h"

namespace kv::analysis {
namespace {

using report::ChartSeries;
using report::LineChart;
using Figure = std::function<double(const TensorAnalysis&)>;

std::string Times(double ratio) { return fmt::format("{:.3f}x", ratio); }

// Points of K and of V, layer by layer.
void AddPoints(const Analysis& analysis, const std::string& suffix, bool emphasised,
               const Figure& figure, LineChart& chart) {
  for (const bool is_value : {false, true}) {
    ChartSeries series{(is_value ? "V" : "K") + suffix, {}, emphasised, false, false};
    for (const LayerAnalysis& layer : analysis.layers) {
      const auto& tensor = is_value ? layer.v : layer.k;
      if (tensor) series.points.push_back({static_cast<double>(layer.layer), figure(*tensor)});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
}

void AddCharts(const Analysis& analysis, const std::string& level, report::Page& page) {
  LineChart ratios;
  ratios.title = "Ratio by layer";
  ratios.x_label = "layer";
  ratios.y_label = "original / compressed";
  ratios.whole_x = true;
  const bool with_own = level != "compat";
  if (with_own) {
    AddPoints(
        analysis, " " + level, true,
        [](const TensorAnalysis& tensor) { return tensor.own ? tensor.own->ratio() : NAN; },
        ratios);
  }
  AddPoints(
      analysis, " mnn", !with_own,
      [](const TensorAnalysis& tensor) { return tensor.measured.ratio(); }, ratios);
  page.Figure(Render(ratios),
              "Measured: coded, decoded again and compared. Higher is better; 1 saves nothing.");
  LineChart bits;
  bits.title = "Bits per value by layer";
  bits.x_label = "layer";
  bits.y_label = "bits per value";
  bits.whole_x = true;
  AddPoints(
      analysis, "", true, [](const TensorAnalysis& tensor) { return tensor.reached_bits(); }, bits);
  AddPoints(
      analysis, " entropy", false,
      [](const TensorAnalysis& tensor) { return tensor.bound().total_bits(); }, bits);
  page.Figure(
      Render(bits),
      "What the better codec needs, and the best entropy model of order 0 or 1. A codec that "
      "draws on earlier rows, which such models do not see, goes below it.");
  std::vector<LayerStats> stats;
  for (const LayerAnalysis& layer : analysis.layers) {
    LayerStats& of = stats.emplace_back(LayerStats{layer.layer});
    if (layer.k) of.k = layer.k->stats;
    if (layer.v) of.v = layer.v->stats;
  }
  AddPlaneEntropies(stats, page);
}

std::vector<std::vector<std::string>> Rows(const Analysis& analysis, const std::string& level) {
  std::vector<std::vector<std::string>> rows = {
      {"layer", "part", "mnn", level, "bits per value", "entropy", "best model",
       "byte planes, high to low", "zero rows", "repeated rows", "tokens"}};
  for (const LayerAnalysis& layer : analysis.layers) {
    for (const auto& [part, name] : {std::pair{&layer.k, "K"}, {&layer.v, "V"}}) {
      if (!*part) continue;
      const TensorAnalysis& tensor = **part;
      const EntropyModel bound = tensor.bound();
      std::string planes;
      for (auto plane = tensor.measured.planes.rbegin(); plane != tensor.measured.planes.rend();
           ++plane) {
        planes += fmt::format("{}{}", planes.empty() ? "" : " / ", Times(plane->ratio()));
      }
      rows.push_back(
          {std::to_string(layer.layer), name, Times(tensor.measured.ratio()),
           tensor.own ? Times(tensor.own->ratio()) : "-",
           fmt::format("{:.2f}", tensor.reached_bits()), fmt::format("{:.2f}", bound.total_bits()),
           std::string(bound.name), planes, std::to_string(tensor.structure.zero_rows),
           std::to_string(tensor.structure.repeated_rows), std::to_string(tensor.tokens)});
    }
  }
  return rows;
}

}  // namespace

void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page) {
  const Totals total = analysis.total();
  if (total.raw_bytes == 0) return page.Paragraph("There are no keys and values.");
  std::vector<std::pair<std::string, std::string>> facts = {
      {"K and V", report::ShortBytes(static_cast<double>(total.raw_bytes))},
      {"by MNN's codec", Times(total.ratio())}};
  if (level != "compat") facts.push_back({"at level " + level, Times(total.own_ratio())});
  facts.push_back({"order-0/1 entropy", Times(total.bound_ratio())});
  facts.push_back({"decoded again", total.decodes ? "equal by hash" : "DIFFERENT"});
  page.Facts(facts);
  AddCharts(analysis, level, page);
  page.Table(Rows(analysis, level));
  page.Notes("Remarks", analysis.findings);
}

}  // namespace kv::analysis
