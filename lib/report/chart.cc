// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "lib/report/svg.h"
#include "lib/report/svg_text.h"

namespace kv::report {
namespace {

// Where labels stand, so that none hides another.

struct Box {
  double left, top, right, bottom;

  double Area() const { return (right - left) * (bottom - top); }
  double Overlap(const Box& other) const {
    const double width = std::min(right, other.right) - std::max(left, other.left);
    const double height = std::min(bottom, other.bottom) - std::max(top, other.top);
    return width > 0 && height > 0 ? width * height : 0;
  }
};

// Labels in a column beside the plot, each as near to the height of its line's end as the others
// allow.
struct EndLabel {
  double y;
  size_t series;
};

// A label at a dot: beside it, above, below, or a little further off.
struct DotLabel {
  double x, y;         // of the text
  const char* anchor;  // the class that aligns it
  Box box;
};

std::vector<DotLabel> Places(double x, double y, double width) {
  std::vector<DotLabel> places;
  for (const double away : {0.0, 10.0, 20.0, 30.0, 42.0, 54.0}) {
    for (const double at : {y + 4 + away, y + 4 - away}) {
      places.push_back({x + 8, at, "", {x + 8, at - 10, x + 8 + width, at + 2}});
      places.push_back({x - 8, at, " e", {x - 8 - width, at - 10, x - 8, at + 2}});
    }
    for (const double at : {y - 8 - away, y + 17 + away}) {
      places.push_back({x, at, " m", {x - width / 2, at - 10, x + width / 2, at + 2}});
    }
  }
  return places;
}

std::vector<EndLabel> Spread(std::vector<EndLabel> labels, double top, double bottom, double step) {
  std::sort(labels.begin(), labels.end(), [](const EndLabel& a, const EndLabel& b) {
    return a.y != b.y ? a.y < b.y : a.series < b.series;
  });
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i].y = std::max(labels[i].y, i == 0 ? top : labels[i - 1].y + step);
  }
  double limit = bottom;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label, limit -= step) {
    label->y = std::min(label->y, limit);
  }
  return labels;
}

// Returns the first place that hides nothing that is taken, or the one that hides least.
DotLabel PlaceAt(double x, double y, double width, const Box& inside,
                 const std::vector<Box>& taken) {
  DotLabel best{};
  double least = INFINITY;
  for (const DotLabel& place : Places(x, y, width)) {
    double cost = 9 * (place.box.Area() - place.box.Overlap(inside));
    for (const Box& other : taken) cost += place.box.Overlap(other);
    if (cost < least - 1e-6) {
      least = cost;
      best = place;
    }
  }
  return best;
}

constexpr double kRow = 14;           // height of a label
constexpr size_t kMostLetters = 28;   // of a label beside the plot
constexpr size_t kMostNamed = 60;     // points of one chart: more names hide each other
constexpr size_t kMostPoints = 2000;  // of a series: more than a screen shows
constexpr size_t kMostLabels = 40;    // beside the plot

// A chart with the places of its axes.
struct Plot {
  const LineChart& chart;
  Axis x, y;

  bool IsDrawable(const ChartPoint& point) const {
    return std::isfinite(point.x) && std::isfinite(point.y) && (!chart.log_x || point.x > 0);
  }
  double X(const ChartPoint& point) const { return x.At(point.x); }
  double Y(const ChartPoint& point) const { return y.At(point.y); }
  const ChartPoint* LastOf(const ChartSeries& series) const {
    const auto last = std::find_if(series.points.rbegin(), series.points.rend(),
                                   [&](const ChartPoint& point) { return IsDrawable(point); });
    return last == series.points.rend() ? nullptr : &*last;
  }
};

void Fit(const Plot& plot, double ChartPoint::*value, bool is_y, Axis& axis) {
  double low = INFINITY, high = -INFINITY;
  const auto add = [&](double at) {
    low = std::min(low, at);
    high = std::max(high, at);
  };
  for (const ChartSeries& series : plot.chart.series) {
    for (const ChartPoint& point : series.points) {
      if (plot.IsDrawable(point)) add(point.*value);
    }
  }
  if (low > high) return;
  for (const ChartTarget& target : plot.chart.targets) {
    if (target.is_y == is_y && std::isfinite(target.at) && !(axis.is_log && target.at <= 0)) {
      add(target.at);
    }
  }
  if (axis.is_log) {  // no dot on the frame
    low /= 1.4;
    high *= 1.4;
  } else if (low == high) {
    low -= 0.5;
    high += 0.5;
  }
  axis.low = low;
  axis.high = high;
}

bool HasTargets(const LineChart& chart, bool is_y) {
  return std::any_of(chart.targets.begin(), chart.targets.end(),
                     [&](const ChartTarget& target) { return target.is_y == is_y; });
}

Plot PlotOf(const LineChart& chart) {
  Plot plot{chart, {}, {}};
  double longest = 0;  // of the names
  size_t labels = 0;
  for (const ChartSeries& series : chart.series) {
    if (series.name.empty() || plot.LastOf(series) == nullptr) continue;
    const auto letters = static_cast<double>(std::min(Letters(series.name), kMostLetters + 1));
    longest = std::max(longest, 6.6 * letters * (series.emphasised ? 1.1 : 1));
    ++labels;
  }
  const double room = longest == 0 ? 8 : 26 + longest;
  const double top = HasTargets(chart, false) ? 40 : 22;
  const double rows = kRow * static_cast<double>(std::min(labels, kMostLabels));
  plot.x = {chart.bytes ? 66.0 : 48.0, kChartWidth - room};
  plot.y = {top + std::max(190.0, rows), top};
  plot.x.is_log = chart.log_x;
  plot.x.bytes = chart.x_bytes;
  plot.x.whole = chart.whole_x;
  plot.y.bytes = chart.bytes;
  if (chart.log_x) plot.x.low = 1, plot.x.high = 10;
  Fit(plot, &ChartPoint::x, false, plot.x);
  Fit(plot, &ChartPoint::y, true, plot.y);
  // The axis ends on a round value unless the caller fixed it.
  plot.y.low = chart.y_min.value_or(plot.y.low);
  plot.y.high = chart.y_max.value_or(plot.y.high);
  if (plot.y.high <= plot.y.low) plot.y.high = plot.y.low + 1;
  if (!chart.y_min) plot.y.RoundLow();
  if (!chart.y_max) plot.y.RoundHigh();
  return plot;
}

void DrawAxes(const Plot& plot, std::string& out) {
  for (const double value : plot.y.Ticks()) {
    out += Line("g", plot.x.begin, plot.y.At(value), plot.x.end, plot.y.At(value));
    out += Text("t e", plot.x.begin - 5, plot.y.At(value) + 4, plot.y.Label(value));
  }
  for (const double value : plot.x.Ticks()) {
    out += Line("g", plot.x.At(value), plot.y.end, plot.x.At(value), plot.y.begin);
    out += Text("t m", plot.x.At(value), plot.y.begin + 15, plot.x.Label(value));
  }
  out += Line("a", plot.x.begin, plot.y.begin, plot.x.end, plot.y.begin);
  out += Text("t m", (plot.x.begin + plot.x.end) / 2, plot.y.begin + 31, plot.chart.x_label);
  out += Text("t", 2, 12, plot.chart.y_label);
}

// Names of targets are left out where they would hide each other; all are tooltips.
void DrawTargets(const Plot& plot, std::string& out) {
  double free_from = 0;
  for (const ChartTarget& target : plot.chart.targets) {
    if (!std::isfinite(target.at) || (!target.is_y && plot.x.is_log && target.at <= 0)) continue;
    const Axis& axis = target.is_y ? plot.y : plot.x;
    if (target.at < axis.low || target.at > axis.high) continue;
    const double at = axis.At(target.at);
    out += target.is_y ? Line("ta", plot.x.begin, at, plot.x.end, at)
                       : Line("ta", at, plot.y.end, at, plot.y.begin);
    if (target.is_y) {
      out += Text("t e", plot.x.end - 2, at - 4, target.name, kMostLetters);
      continue;
    }
    const double half = TextWidth(target.name) / 2;
    const double middle = std::clamp(at, half, std::max(half, kChartWidth - half));
    if (middle - half < free_from) continue;
    out += Text("t m", middle, plot.y.end - 8, target.name, kMostLetters);
    free_from = middle + half + 6;
  }
}

void DrawSeries(const Plot& plot, size_t index, std::string& out) {
  const ChartSeries& series = plot.chart.series[index];
  const size_t stride = (series.points.size() + kMostPoints - 1) / kMostPoints;
  std::string path;
  std::vector<const ChartPoint*> dots;
  size_t run = 0;  // points since the last gap
  const ChartPoint* last = nullptr;
  const auto end_run = [&] {
    if (run == 1 && !plot.chart.markers) dots.push_back(last);
    run = 0;
  };
  for (size_t i = 0; i < series.points.size(); ++i) {
    const ChartPoint& point = series.points[i];
    if (!plot.IsDrawable(point)) {
      end_run();
      continue;
    }
    if (stride > 1 && i % stride != 0 && i + 1 != series.points.size()) continue;
    if (plot.chart.markers || !series.joined) dots.push_back(&point);
    if (!series.joined) continue;
    path += fmt::format("{}{} {}", run++ == 0 ? "M" : "L", Coordinate(plot.X(point)),
                        Coordinate(plot.Y(point)));
    last = &point;
  }
  end_run();
  if (!path.empty()) {
    out += fmt::format("<path class=\"l c{}{}{}\" d=\"{}\"/>\n", index % kChartColours,
                       series.emphasised ? " em" : "",
                       series.dashed || index >= kChartColours ? " da" : "", path);
  }
  for (const ChartPoint* point : dots) {
    const std::string& name = point->name.empty() ? series.name : point->name;
    const std::string tip = fmt::format("{}{}{}, {}", name, name.empty() ? "" : ": ",
                                        plot.x.Label(point->x), plot.y.Label(point->y));
    out += Dot(index, plot.X(*point), plot.Y(*point), series.emphasised ? 4 : 3, tip);
  }
}

void DrawEndLabels(const Plot& plot, std::string& out) {
  std::vector<EndLabel> labels;
  for (size_t i = 0; i < plot.chart.series.size(); ++i) {
    const ChartSeries& series = plot.chart.series[i];
    const ChartPoint* last = series.name.empty() ? nullptr : plot.LastOf(series);
    if (last != nullptr && labels.size() < kMostLabels) labels.push_back({plot.Y(*last), i});
  }
  const double left = plot.x.end + 12;
  for (const EndLabel& label : Spread(std::move(labels), plot.y.end, plot.y.begin, kRow)) {
    const ChartSeries& series = plot.chart.series[label.series];
    const ChartPoint& last = *plot.LastOf(series);
    // From the line's end to its name.
    const double x = plot.X(last) + 4, y = plot.Y(last);
    if (series.joined && x < left - 3) {
      out +=
          fmt::format("<path class=\"ld c{}\" d=\"M{} {}L{} {}\"/>\n", label.series % kChartColours,
                      Coordinate(x), Coordinate(y), Coordinate(left - 1), Coordinate(label.y));
    }
    if (series.joined && !plot.chart.markers) {
      out += fmt::format("<rect class=\"f{}\" x=\"{}\" y=\"{}\" width=\"8\" height=\"3\"/>\n",
                         label.series % kChartColours, Coordinate(left), Coordinate(label.y - 1.5));
    } else {
      out += Dot(label.series, left + 4, label.y, 3, "");
    }
    out += Text(series.emphasised ? "t b" : "t", left + 11, label.y + 4, series.name, kMostLetters);
  }
}

// Names of points. Those that matter most choose their places first.
void DrawNames(const Plot& plot, std::string& out) {
  std::vector<Box> taken;
  std::vector<std::pair<const ChartPoint*, bool>> named;
  for (const bool emphasised : {true, false}) {
    for (const ChartSeries& series : plot.chart.series) {
      if (series.emphasised != emphasised) continue;
      for (const ChartPoint& point : series.points) {
        if (!plot.IsDrawable(point) || taken.size() >= kMostPoints) continue;
        const double x = plot.X(point), y = plot.Y(point);
        if (!series.joined || plot.chart.markers) taken.push_back({x - 5, y - 5, x + 5, y + 5});
        if (!point.name.empty()) named.emplace_back(&point, emphasised);
      }
    }
  }
  named.resize(std::min(named.size(), kMostNamed));
  const Box inside{plot.x.begin, plot.y.end - 6, kChartWidth, plot.y.begin};
  for (const auto& [point, emphasised] : named) {
    const double width = TextWidth(point->name) * (emphasised ? 1.08 : 1);
    const DotLabel label = PlaceAt(plot.X(*point), plot.Y(*point), width, inside, taken);
    taken.push_back(label.box);
    out += Text(fmt::format("{}{}", emphasised ? "t b" : "t", label.anchor), label.x, label.y,
                point->name, 2 * kMostLetters);
  }
}

}  // namespace

LineChart ChartByLayer(std::string title, std::string y_label, std::optional<double> y_min) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "layer";
  chart.y_label = std::move(y_label);
  chart.whole_x = true;
  chart.y_min = y_min;
  return chart;
}

Picture Render(const LineChart& chart) {
  const Plot plot = PlotOf(chart);
  Picture picture{chart.title, kChartWidth, plot.y.begin + 38, {}};
  DrawAxes(plot, picture.body);
  DrawTargets(plot, picture.body);
  std::vector<size_t> order(chart.series.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t i) { return !chart.series[i].emphasised; });
  for (const size_t index : order) DrawSeries(plot, index, picture.body);
  DrawEndLabels(plot, picture.body);
  DrawNames(plot, picture.body);
  return picture;
}

std::vector<ChartPoint> Frontier(std::vector<ChartPoint> points, bool low_y_is_better) {
  const auto cost = [&](const ChartPoint& point) { return low_y_is_better ? point.y : -point.y; };
  points.erase(std::remove_if(points.begin(), points.end(),
                              [](const ChartPoint& point) {
                                return !std::isfinite(point.x) || !std::isfinite(point.y);
                              }),
               points.end());
  std::stable_sort(points.begin(), points.end(), [&](const ChartPoint& a, const ChartPoint& b) {
    return a.x != b.x ? a.x > b.x : cost(a) < cost(b);
  });
  std::vector<ChartPoint> best;
  for (ChartPoint& point : points) {
    if (!best.empty() && cost(point) >= cost(best.back())) continue;
    point.name.clear();
    best.push_back(std::move(point));
  }
  return best;
}

}  // namespace kv::report
