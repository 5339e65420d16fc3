// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/study/report/svg.h"

namespace kv::gate {
namespace {

using report::ChartSeries;
using report::LineChart;
using report::Page;
using report::Record;
using report::StripMap;
using report::Tone;

constexpr size_t kMaxPoints = 400;  // of one line: more than a screen shows
constexpr size_t kMaxSeries = 8;    // in one chart; more lines cannot be told apart
constexpr double kVerdictStrength = 0.9;

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

// Names of cases over all runs, in the order of the newest, older ones after.
std::vector<std::string> CaseNames(const std::vector<SummaryView>& history) {
  std::vector<std::string> names;
  for (auto run = history.rbegin(); run != history.rend(); ++run) {
    for (const CaseView& c : run->cases) {
      if (std::find(names.begin(), names.end(), c.name) == names.end()) names.push_back(c.name);
    }
  }
  return names;
}

const CaseView* CaseIn(const SummaryView& view, const std::string& name) {
  const auto found = std::find_if(view.cases.begin(), view.cases.end(),
                                  [&](const CaseView& c) { return c.name == name; });
  return found == view.cases.end() ? nullptr : &*found;
}

std::string RunName(const SummaryView& view) {
  return view.generated_at.empty() ? view.file : view.generated_at;
}

void AddVerdictMap(const std::vector<SummaryView>& history, Page& page) {
  StripMap map;
  map.title = "Verdicts by case and run";
  map.x_label = "run, the newest on the right";
  map.x_end = static_cast<double>(history.size());
  map.unit_ticks = true;
  for (const std::string& name : CaseNames(history)) {
    report::StripRow row{name, {}};
    for (size_t i = 0; i < history.size(); ++i) {
      const CaseView* c = CaseIn(history[i], name);
      if (c == nullptr) continue;
      const auto x = static_cast<double>(i);
      const double strength = c->status == Status::kNotRun ? NAN : kVerdictStrength;
      row.spans.push_back({x, x + 1, strength, c->status == Status::kFail ? 1 : 0,
                           fmt::format("{}: {}", RunName(history[i]), Text(c->status))});
    }
    map.rows.push_back(std::move(row));
  }
  page.Figure(Render(map), "One column per run. Blue: passed. Orange: failed. Outlined: not run.");
}

}  // namespace

report::Tone ToneOf(Status status) {
  if (status == Status::kPass) return Tone::kGood;
  return status == Status::kFail ? Tone::kBad : Tone::kOpen;
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

void AddHistory(const std::vector<SummaryView>& history, std::span<const HistoryFigure> figures,
                Page& page) {
  if (history.size() < 2) return;
  page.Heading("History");
  std::vector<Record> records;
  for (auto run = history.rbegin(); run != history.rend(); ++run) {
    records.push_back({run->pass ? Tone::kGood : Tone::kBad,
                       run->pass ? "pass" : "fail",
                       {RunName(*run), CountText(*run), run->tool}});
  }
  page.Records({"", "run", "cases", "by"}, records);
  AddVerdictMap(history, page);
  for (const HistoryFigure& figure : figures) {
    LineChart chart;
    chart.title = figure.name;
    chart.x_label = "run";
    chart.y_label = figure.label;
    chart.markers = true;
    chart.bytes = figure.bytes;
    chart.whole_x = true;
    if (figure.from_zero) chart.y_min = 0;
    bool any_line = false;
    for (const std::string& name : CaseNames(history)) {
      ChartSeries series{name, {}, false, false};
      for (size_t i = 0; i < history.size(); ++i) {
        const CaseView* c = CaseIn(history[i], name);
        const auto value = c == nullptr ? std::nullopt : c->Figure(figure.name);
        if (value) series.points.push_back({static_cast<double>(i), *value});
      }
      any_line |= series.points.size() > 1;
      if (!series.points.empty() && chart.series.size() < kMaxSeries) {
        chart.series.push_back(std::move(series));
      }
    }
    if (any_line) page.Figure(Render(chart), figure.caption);
  }
}

}  // namespace kv::gate
