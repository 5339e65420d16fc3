// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "lib/report/svg.h"
#include "lib/report/svg_text.h"

namespace kv::report {
namespace {

// Remembers the places of texts, so that none hides another.
struct Box {
  double left, top, right, bottom;

  bool Meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
  bool Holds(const Box& other) const {
    return left <= other.left && top <= other.top && other.right <= right && other.bottom <= bottom;
  }
};

// Places a name at a dot: beside it, above, below, or further away with a line to it.
struct Place {
  double x, y;         // position of the text
  const char* anchor;  // class for its alignment
  Box box;
  bool is_away;
};

std::vector<Place> PlacesAt(double x, double y, double width) {
  std::vector<Place> places;
  for (const double away : {0.0, 12.0, 24.0, 36.0}) {
    const double left = x - 8 - away / 2, right = x + 8 + away / 2;
    for (const double at : {y + 4 + away, y + 4 - away}) {
      places.push_back({right, at, "", {right, at - 10, right + width, at + 3}, away > 0});
      places.push_back({left, at, " e", {left - width, at - 10, left, at + 3}, away > 0});
    }
    for (const double at : {y - 8 - away, y + 17 + away}) {
      places.push_back({x, at, " m", {x - width / 2, at - 10, x + width / 2, at + 3}, away > 0});
    }
  }
  return places;
}

constexpr size_t kMostNamed = 60;       // points of one chart that need a place for their name
constexpr size_t kMostPoints = 2000;    // points of a series: more than fits a screen
constexpr size_t kMostEntries = 40;     // entries of a legend
constexpr double kMostNameWidth = 190;  // width of a name beside a point
constexpr double kMostTickWidth = 90;
constexpr double kLeastLog = 1e-300;  // values below it are drawn as 0 on logarithmic axes

// A chart with the positions of its axes.
struct Plot {
  const LineChart& chart;
  Axis x, y;

  bool IsDrawable(const ChartPoint& point) const {
    return IsDrawn(point.x) && IsDrawn(point.y) && (!chart.log_x || point.x >= kLeastLog) &&
           (!chart.log_y || point.y >= kLeastLog);
  }
  double X(const ChartPoint& point) const { return x.At(point.x); }
  double Y(const ChartPoint& point) const { return y.At(point.y); }
  bool HasPoint(const ChartSeries& series) const {
    return std::any_of(series.points.begin(), series.points.end(),
                       [&](const ChartPoint& point) { return IsDrawable(point); });
  }
  // Returns true if a marker lies in the box.
  bool HasMarker(const Box& box) const {
    const auto meets = [&](const ChartPoint& point) {
      const double at_x = X(point), at_y = Y(point);
      return IsDrawable(point) && box.Meets({at_x - 4, at_y - 4, at_x + 4, at_y + 4});
    };
    return std::any_of(chart.series.begin(), chart.series.end(), [&](const ChartSeries& series) {
      return (!series.joined || chart.markers) &&
             std::any_of(series.points.begin(), series.points.end(), meets);
    });
  }
};

// Returns the half width of an axis around a single value.
double ReachAround(double value) { return std::max(0.5, 1e-9 * std::abs(value)); }

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
    if (target.is_y == is_y && IsDrawn(target.at) && !(axis.is_log && target.at < kLeastLog)) {
      add(target.at);
    }
  }
  if (axis.is_log) {  // keeps points off the frame
    low /= 1.4;
    high *= 1.4;
  } else if (!IsRange(low, high)) {
    low -= ReachAround(low);
    high += ReachAround(high);
  }
  axis.low = low;
  axis.high = high;
}

// Returns the classes of a series' line.
std::string LineClasses(const LineChart& chart, size_t index) {
  const ChartSeries& series = chart.series[index];
  return fmt::format("l c{}{}{}", index % kChartColours, series.emphasised ? " em" : "",
                     series.dashed || index >= kChartColours ? " da" : "");
}

bool HasTargets(const LineChart& chart, bool is_y) {
  return std::any_of(chart.targets.begin(), chart.targets.end(),
                     [&](const ChartTarget& target) { return target.is_y == is_y; });
}

Plot MakePlot(const LineChart& chart) {
  Plot plot{chart, {}, {}};
  const double top = HasTargets(chart, false) ? 40 : 24;
  plot.x = {48, kChartWidth - 10};
  plot.y = {top + 190, top};
  plot.x.is_log = chart.log_x;
  plot.y.is_log = chart.log_y;
  plot.x.unit = chart.x_unit;
  plot.x.whole = chart.whole_x;
  plot.y.unit = chart.y_unit;
  for (Axis* axis : {&plot.x, &plot.y}) {
    if (axis->is_log) axis->low = 1, axis->high = 10;
  }
  Fit(plot, &ChartPoint::x, false, plot.x);
  Fit(plot, &ChartPoint::y, true, plot.y);
  // The axis ends on a round value unless the caller fixed it.
  plot.y.low = chart.y_min.value_or(plot.y.low);
  plot.y.high = chart.y_max.value_or(plot.y.high);
  if (!IsRange(plot.y.low, plot.y.high)) plot.y.high = plot.y.low + 2 * ReachAround(plot.y.low);
  if (!chart.y_min) plot.y.RoundLow();
  if (!chart.y_max) plot.y.RoundHigh();
  double widest = 0;  // widest of the labels at the left
  for (const double value : plot.y.Ticks()) {
    widest = std::max(widest, TextWidth(plot.y.Label(value)));
  }
  plot.x.begin = 9 + std::min(widest, kMostTickWidth);
  return plot;
}

void DrawAxes(const Plot& plot, Marks& out) {
  for (const double value : plot.y.Ticks()) {
    out.push_back(Line("g", plot.x.begin, plot.y.At(value), plot.x.end, plot.y.At(value)));
    out.push_back(
        Text("t e", plot.x.begin - 5, plot.y.At(value) + 4, plot.y.Label(value), kMostTickWidth));
  }
  for (const double value : plot.x.Ticks()) {
    out.push_back(Line("g", plot.x.At(value), plot.y.end, plot.x.At(value), plot.y.begin));
  }
  DrawTickLabels(plot.x, 0, plot.y.begin + 17, out);
  out.push_back(Line("a", plot.x.begin, plot.y.begin, plot.x.end, plot.y.begin));
  out.push_back(Text("t m", kChartWidth / 2, plot.y.begin + 33, plot.chart.x_label, kChartWidth));
  out.push_back(Text("t", 2, 12, plot.chart.y_label, kChartWidth - 4));
}

// Names of targets are omitted if they would overlap; all are tooltips.
void DrawTargets(const Plot& plot, std::vector<Box>& taken, Marks& out) {
  double free_from = 0;
  for (const ChartTarget& target : plot.chart.targets) {
    const Axis& axis = target.is_y ? plot.y : plot.x;
    if (!IsDrawn(target.at) || (axis.is_log && target.at < kLeastLog)) continue;
    if (target.at < axis.low || target.at > axis.high) continue;
    const double at = axis.At(target.at);
    out.push_back(target.is_y ? Line("ta", plot.x.begin, at, plot.x.end, at)
                              : Line("ta", at, plot.y.end, at, plot.y.begin));
    out.back().tip = target.name;
    const Mark name = Text("t m", 0, 0, target.name, kMostNameWidth);
    const double half = TextWidth(name.text) / 2;
    if (target.is_y) {
      // The name is at the right end, unless it would hide a marker that it does not at the left.
      const double y = at - plot.y.end < kRow ? at + 13 : at - 4;
      const Box right{plot.x.end - 2 - 2 * half, y - 10, plot.x.end, y + 3};
      const Box left{plot.x.begin, y - 10, plot.x.begin + 2 + 2 * half, y + 3};
      const bool is_left = plot.HasMarker(right) && !plot.HasMarker(left);
      out.push_back(Text(is_left ? "t n" : "t e n", is_left ? left.left + 2 : right.right - 2, y,
                         target.name, kMostNameWidth));
      taken.push_back(is_left ? left : right);
      continue;
    }
    const double middle = std::clamp(at, half, std::max(half, kChartWidth - half));
    if (middle - half < free_from) continue;
    out.push_back(Text("t m", middle, plot.y.end - 8, target.name, kMostNameWidth));
    free_from = middle + half + 6;
  }
}

void DrawSeries(const Plot& plot, size_t index, Marks& out) {
  const ChartSeries& series = plot.chart.series[index];
  const size_t stride = (series.points.size() + kMostPoints - 1) / kMostPoints;
  Mark path{Mark::Kind::kPath};
  std::vector<const ChartPoint*> dots;
  size_t run = 0;  // points since the last missing value
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
    path.steps.push_back({run++ == 0 ? 'M' : 'L', plot.X(point), plot.Y(point)});
    last = &point;
  }
  end_run();
  if (!path.steps.empty()) {
    path.classes = LineClasses(plot.chart, index);
    out.push_back(std::move(path));
  }
  for (const ChartPoint* point : dots) {
    const std::string& name = point->name.empty() ? series.name : point->name;
    const std::string tip = fmt::format("{}{}{}, {}", name, name.empty() ? "" : ": ",
                                        plot.x.Exact(point->x), plot.y.Exact(point->y));
    out.push_back(Dot(index, plot.X(*point), plot.Y(*point), series.emphasised ? 4 : 3, tip));
  }
}

// Lists the names of series below the plot, in the same order in all charts of a page.
std::vector<LegendEntry> MakeLegend(const Plot& plot) {
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < plot.chart.series.size() && entries.size() < kMostEntries; ++i) {
    const ChartSeries& series = plot.chart.series[i];
    if (series.name.empty() || !plot.HasPoint(series)) continue;
    LegendEntry& entry = entries.emplace_back();
    entry.text = series.name;
    entry.is_bold = series.emphasised;
    entry.width = series.joined ? 18 : 8;
    if (series.joined) entry.marks.push_back(Line(LineClasses(plot.chart, i), 0, 0, 18, 0));
    if (!series.joined || plot.chart.markers) {
      entry.marks.push_back(Dot(i, entry.width / 2, 0, 3, ""));
    }
  }
  return entries;
}

// Draws the names of points, if there is room. The most important ones choose their places first.
void DrawNames(const Plot& plot, std::vector<Box> taken, Marks& out) {
  std::vector<std::pair<const ChartPoint*, bool>> named;
  for (const bool emphasised : {true, false}) {
    for (const ChartSeries& series : plot.chart.series) {
      if (series.emphasised != emphasised) continue;
      for (const ChartPoint& point : series.points) {
        if (!plot.IsDrawable(point) || taken.size() >= kMostPoints) continue;
        const double x = plot.X(point), y = plot.Y(point);
        if (!series.joined || plot.chart.markers) taken.push_back({x - 4, y - 4, x + 4, y + 4});
        if (series.named && !point.name.empty()) named.emplace_back(&point, emphasised);
      }
    }
  }
  named.resize(std::min(named.size(), kMostNamed));
  const Box inside{plot.x.begin, plot.y.end - 6, kChartWidth - 4, plot.y.begin};
  for (const auto& [point, emphasised] : named) {
    const double x = plot.X(*point), y = plot.Y(*point);
    Mark name = Text("", 0, 0, point->name, kMostNameWidth);
    const std::vector<Place> places = PlacesAt(x, y, TextWidth(name.text) * (emphasised ? 1.1 : 1));
    const auto place = std::find_if(places.begin(), places.end(), [&](const Place& at) {
      return inside.Holds(at.box) && std::none_of(taken.begin(), taken.end(), [&](const Box& box) {
               return at.box.Meets(box);
             });
    });
    if (place == places.end()) continue;
    const Box& box = place->box;
    taken.push_back(box);
    if (place->is_away) {
      out.push_back(Line("ld", x, y, std::clamp(x, box.left, box.right),
                         std::clamp(y, box.top + 3, box.bottom)));
    }
    name.classes = fmt::format("{} n{}", emphasised ? "b" : "t", place->anchor);
    name.x = place->x;
    name.y = place->y;
    out.push_back(std::move(name));
  }
}

}  // namespace

bool IsDrawn(double value) {
  constexpr double kMost = 1e300;
  return std::abs(value) < kMost;  // false also for NaN
}

bool IsRange(double low, double high) {
  constexpr double kLeast = 1e-300, kLeastShare = 1e-9;
  const double range = high - low;
  return std::isfinite(range) &&
         range > std::max(kLeast, kLeastShare * std::max(std::abs(low), std::abs(high)));
}

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
  const Plot plot = MakePlot(chart);
  Picture picture{chart.title, kChartWidth, plot.y.begin + 40};
  DrawAxes(plot, picture.marks);
  std::vector<Box> taken;
  std::vector<size_t> order(chart.series.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t i) { return !chart.series[i].emphasised; });
  for (const size_t index : order) DrawSeries(plot, index, picture.marks);
  DrawTargets(plot, taken, picture.marks);  // drawn on top of series, which would hide the names
  DrawNames(plot, std::move(taken), picture.marks);
  picture.height = DrawLegend(MakeLegend(plot), picture.height, picture.marks) + 3;
  DrawTitle(picture);
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

namespace {

constexpr size_t kMostRows = 256;
constexpr double kMostRowNameWidth = 120;
constexpr uint64_t kMostCells = 24'000, kMostColumns = 240, kMostTips = 1500;
constexpr int kShades = 20;
constexpr double kTop = 4;

// The paint of a cell: an outline, or one of several strengths of a colour.
struct Shade {
  int kind = 0, shade = -1;  // -1: an outline

  static Shade From(double value, int kind) {
    if (!std::isfinite(value)) return {};
    return {kind, static_cast<int>(std::lround(std::clamp(value, 0.0, 1.0) * kShades))};
  }
  // Sets the style of a mark.
  Mark Of(Mark mark) const {
    mark.classes = shade < 0 ? "kx" : fmt::format("k{}", kind);
    if (shade >= 0) mark.strength = 0.06 + 0.94 * shade / kShades;
    return mark;
  }
  bool operator<(const Shade& other) const {
    return kind != other.kind ? kind < other.kind : shade < other.shade;
  }
};

Mark Cell(const Shade& shade, double x, double y, double width, double height,
          std::string_view tip) {
  Mark mark = shade.Of(Rect("", x, y, std::max(width, 0.4), height));
  mark.tip = tip;
  return mark;
}

std::vector<LegendEntry> MakeLegend(const StripMap& map) {
  std::vector<LegendEntry> entries;
  const auto add = [&](const Shade& shade, const std::string& label) {
    entries.push_back({{Cell(shade, 0, -5.5, 12, 11, "")}, 12, label});
  };
  if (!map.low_label.empty()) {
    LegendEntry& scale = entries.emplace_back();
    for (int i = 0; i <= 5; ++i) {
      scale.marks.push_back(Cell(Shade::From(i / 5.0, 0), 12 * i, -5.5, 12, 11, ""));
    }
    scale.width = 72;
    scale.text = map.low_label + " to " + map.high_label;
  } else if (!map.high_label.empty()) {
    add(Shade::From(1, 0), map.high_label);
  }
  if (!map.second_label.empty()) add(Shade::From(1, 1), map.second_label);
  return entries;
}

// Draws a row's cells. Those without a tooltip are grouped by shade: one path for many takes a
// fraction of the bytes.
void DrawRow(const StripRow& row, const Axis& axis, double y, double height,
             std::map<Shade, std::vector<Mark::Step>>& paths, Marks& out) {
  for (const StripSpan& span : row.spans) {
    const double x = axis.At(span.begin), width = axis.At(span.end) - x;
    const Shade shade = Shade::From(span.value, span.kind);
    if (!span.tip.empty()) {
      out.push_back(Cell(shade, x, y, width, height, span.tip));
      continue;
    }
    const double right = x + std::max(width, 0.4), bottom = y + height;
    std::vector<Mark::Step>& path = paths[shade];
    path.insert(path.end(),
                {{'M', x, y}, {'L', right, y}, {'L', right, bottom}, {'L', x, bottom}, {'Z'}});
  }
}

}  // namespace

uint64_t MapColumns(uint64_t extent, uint64_t rows) {
  const uint64_t shown = std::clamp<uint64_t>(rows, 1, kMostRows);
  return std::clamp<uint64_t>(extent, 1, std::min(kMostColumns, kMostCells / shown));
}

bool HasRoomForTips(uint64_t columns, uint64_t rows) { return columns * rows <= kMostTips; }

Picture Render(const StripMap& map) {
  const size_t rows = std::min(map.rows.size(), kMostRows);
  double longest = 0;
  for (const StripRow& row : map.rows) longest = std::max(longest, TextWidth(row.name));
  const double left = 10 + std::min(longest, kMostRowNameWidth);
  const double height =
      std::clamp(360.0 / static_cast<double>(std::max<size_t>(1, rows)), 4.0, 22.0);
  const auto every = static_cast<size_t>(std::ceil(13 / height));  // rows with space for a name
  const double bottom = kTop + height * static_cast<double>(rows);
  Axis axis{left, kChartWidth - 4, 0, std::max(map.x_end, 1e-9)};
  Picture picture{map.title, kChartWidth, bottom + 38};
  Marks& out = picture.marks;
  std::map<Shade, std::vector<Mark::Step>> paths;
  for (size_t r = 0; r < rows; ++r) {
    const double y = kTop + height * static_cast<double>(r);
    if (r % every == 0) {
      out.push_back(Text("t e", left - 5, y + height / 2 + 4, map.rows[r].name, kMostRowNameWidth));
    }
    DrawRow(map.rows[r], axis, y, height > 6 ? height - 1 : height, paths, out);
  }
  for (auto& [shade, path] : paths) {
    Mark mark = shade.Of({Mark::Kind::kPath});
    mark.steps = std::move(path);
    out.push_back(std::move(mark));
  }
  Axis ticks = axis;
  ticks.whole = map.unit_ticks;
  if (map.unit_ticks) ticks.high = std::max(axis.high - 1, 1e-9);
  // The last column's tick is at its middle, but the axis ends after it.
  ticks.end = axis.At(ticks.high);
  DrawTickLabels(ticks, map.unit_ticks ? 0.5 : 0, bottom + 14, out);
  out.push_back(Text("t m", (left + axis.end) / 2, bottom + 30, map.x_label, kChartWidth));
  picture.height = DrawLegend(MakeLegend(map), picture.height, out);
  if (rows < map.rows.size()) {
    out.push_back(
        Text("t", 4, picture.height + 12, fmt::format("{} more rows", map.rows.size() - rows)));
    picture.height += kRow;
  }
  picture.height += 3;
  DrawTitle(picture);
  return picture;
}

}  // namespace kv::report
