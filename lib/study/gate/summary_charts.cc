// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/report/svg.h"

namespace kv::gate {
namespace {

using report::ChartSeries;
using report::LineChart;
using report::Page;
using report::Tone;

constexpr size_t kMaxPoints = 400;  // of one line: more than a screen shows

std::string Counted(size_t count, std::string_view what) {
  return count == 0 ? std::string() : fmt::format("{} {}", count, what);
}

report::ChartPoint PointOf(const ResidentSample& sample) {
  return {static_cast<double>(sample.token), static_cast<double>(sample.bytes)};
}

LineChart LayerChart(std::string title) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "layer";
  chart.whole_x = true;
  return chart;
}

void AddLine(const CaseView& c, std::string name, std::optional<double> LayerFigures::*figure,
             LineChart& chart) {
  ChartSeries series{std::move(name), {}, chart.series.empty(), false, false};
  for (const LayerFigures& layer : c.layers) {
    if (layer.*figure)
      series.points.push_back({static_cast<double>(layer.layer), *(layer.*figure)});
  }
  if (!series.points.empty()) chart.series.push_back(std::move(series));
}

}  // namespace

report::Tone ToneOf(Status status) {
  switch (status) {
    case Status::kPass:
      return Tone::kGood;
    case Status::kFail:
      return Tone::kBad;
    case Status::kInconclusive:
      return Tone::kUnsure;
    case Status::kNotRun:
      return Tone::kOpen;
  }
  return Tone::kOpen;
}

std::string CountText(const SummaryView& view) {
  std::string text;
  for (const std::string& part :
       {Counted(view.Count(Status::kFail), "failed"), Counted(view.Count(Status::kPass), "passed"),
        Counted(view.Count(Status::kInconclusive), "inconclusive"),
        Counted(view.Count(Status::kNotRun), "not run")}) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text.empty() ? "no cases" : text;
}

void AddLayers(const CaseView& c, Page& page) {
  LineChart ratios = LayerChart("Lossless ratio per layer");
  ratios.y_label = "ratio, of verified bytes";
  AddLine(c, "K", &LayerFigures::k_ratio, ratios);
  AddLine(c, "V", &LayerFigures::v_ratio, ratios);
  AddLine(c, "K and V", &LayerFigures::ratio, ratios);
  if (!ratios.series.empty()) {
    page.Figure(Render(ratios), "Lossless ratio of each layer. Higher is better; 1 saves nothing.");
  }
  LineChart errors = LayerChart("Attention error per layer");
  errors.y_label = "attention error, mean";
  errors.y_min = 0;
  AddLine(c, "error", &LayerFigures::attention_error, errors);
  if (!errors.series.empty()) {
    page.Figure(Render(errors),
                "Error of the attention output against the full cache, mean over decode steps.");
  }
}

void AddBytes(const CaseView& c, Page& page) {
  if (c.resident.size() < 2) return;
  LineChart chart;
  chart.title = "Resident bytes over time";
  chart.x_label = "token";
  chart.y_label = "bytes held";
  chart.bytes = true;
  chart.y_min = 0;
  ChartSeries series{"held", {}, true, false};
  const size_t stride = (c.resident.size() + kMaxPoints - 1) / kMaxPoints;
  for (size_t i = 0; i < c.resident.size(); i += stride) {
    // The peak of each stride: a chart that hides it would lie.
    const auto begin = c.resident.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end =
        c.resident.begin() + static_cast<std::ptrdiff_t>(std::min(i + stride, c.resident.size()));
    const auto most = std::max_element(
        begin, end,
        [](const ResidentSample& a, const ResidentSample& b) { return a.bytes < b.bytes; });
    series.points.push_back(PointOf(*most));
  }
  series.points.push_back(PointOf(c.resident.back()));
  chart.series.push_back(std::move(series));
  page.Figure(Render(chart), "K and V held at each token: raw values, blobs and caches.");
}

}  // namespace kv::gate
