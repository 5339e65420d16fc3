// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/study/report/svg_text.h"

namespace kv::report {
namespace {

constexpr double kWidth = 420;
constexpr double kText = 11;  // font size
constexpr int kColours = 8;

// Where the plot lies inside the picture.
struct Frame {
  double left, top, right, bottom;
  double x_low, x_high, y_low, y_high;

  double X(double x) const {
    return left + (x - x_low) / std::max(x_high - x_low, 1e-300) * (right - left);
  }
  double Y(double y) const {
    return bottom - (y - y_low) / std::max(y_high - y_low, 1e-300) * (bottom - top);
  }
};

bool IsDrawable(const ChartPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y);
}

struct Extent {
  double low = 0, high = 1;
};

Extent ExtentOf(const LineChart& chart, double ChartPoint::*axis) {
  double low = INFINITY, high = -INFINITY;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!IsDrawable(point)) continue;
      low = std::min(low, point.*axis);
      high = std::max(high, point.*axis);
    }
  }
  if (!(low <= high)) return {0, 1};
  if (low == high) return {low - 0.5, high + 0.5};
  return {low, high};
}

// Round in the unit of the labels: 64 KiB rather than 62.5.
std::vector<double> YTicks(const LineChart& chart, double low, double high) {
  double unit = 1;
  while (chart.bytes && high >= 1024 * unit) unit *= 1024;
  std::vector<double> ticks = RoundTicks(low / unit, high / unit, 5);
  for (double& tick : ticks) tick *= unit;
  return ticks;
}

// Labels at the right end, pushed apart so that they can be read.
struct EndLabel {
  double y;
  size_t series;
};

std::vector<EndLabel> Spread(std::vector<EndLabel> labels, double bottom) {
  constexpr double kStep = kText + 1;
  std::sort(labels.begin(), labels.end(), [](const EndLabel& a, const EndLabel& b) {
    return a.y != b.y ? a.y < b.y : a.series < b.series;
  });
  for (size_t i = 1; i < labels.size(); ++i) {
    labels[i].y = std::max(labels[i].y, labels[i - 1].y + kStep);
  }
  if (!labels.empty() && labels.back().y > bottom) {
    labels.back().y = bottom;
    for (size_t i = labels.size() - 1; i-- > 0;) {
      labels[i].y = std::min(labels[i].y, labels[i + 1].y - kStep);
    }
  }
  return labels;
}

void DrawAxes(const LineChart& chart, const Frame& frame, const std::vector<double>& x_ticks,
              const std::vector<double>& y_ticks, std::string& out) {
  for (const double y : y_ticks) {
    out += Line("g", frame.left, frame.Y(y), frame.right, frame.Y(y));
    out +=
        Text("t e", frame.left - 5, frame.Y(y) + 4, chart.bytes ? ShortBytes(y) : ShortNumber(y));
  }
  for (const double x : x_ticks) {
    out += Line("g", frame.X(x), frame.top, frame.X(x), frame.bottom);
    out += Text("t m", frame.X(x), frame.bottom + 14, ShortNumber(x));
  }
  out += Line("a", frame.left, frame.bottom, frame.right, frame.bottom);
  out += Text("t m", (frame.left + frame.right) / 2, frame.bottom + 29, chart.x_label);
  out += Text("t", 2, 11, chart.y_label);
}

void DrawSeries(const LineChart& chart, const Frame& frame, size_t index, std::string& out) {
  const ChartSeries& series = chart.series[index];
  std::string path;
  for (const ChartPoint& point : series.points) {
    if (!IsDrawable(point)) continue;
    path += fmt::format("{}{} {}", path.empty() ? "M" : "L", Coordinate(frame.X(point.x)),
                        Coordinate(frame.Y(point.y)));
  }
  if (path.empty()) return;
  out += fmt::format("<path class=\"l c{}{}{}\" d=\"{}\"/>\n", index % kColours,
                     series.emphasised ? " em" : "",
                     series.dashed || index >= kColours ? " da" : "", path);
  if (!chart.markers) return;
  for (const ChartPoint& point : series.points) {
    if (!IsDrawable(point)) continue;
    const std::string tip = fmt::format("{}: {}, {}", series.name, ShortNumber(point.x),
                                        chart.bytes ? ShortBytes(point.y) : ShortNumber(point.y));
    out += fmt::format(
        "<circle class=\"f{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"><title>{}</title></circle>\n",
        index % kColours, Coordinate(frame.X(point.x)), Coordinate(frame.Y(point.y)),
        series.emphasised ? 4 : 3, EscapeMarkup(tip));
  }
}

void DrawEndLabels(const LineChart& chart, const Frame& frame, std::string& out) {
  std::vector<EndLabel> labels;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const auto& points = chart.series[i].points;
    const auto last = std::find_if(points.rbegin(), points.rend(), IsDrawable);
    if (last != points.rend()) labels.push_back({frame.Y(last->y), i});
  }
  for (const EndLabel& label : Spread(std::move(labels), frame.bottom)) {
    out += fmt::format("<rect class=\"f{}\" x=\"{}\" y=\"{}\" width=\"8\" height=\"3\"/>\n",
                       label.series % kColours, Coordinate(frame.right + 5),
                       Coordinate(label.y - 1.5));
    out += Text(chart.series[label.series].emphasised ? "t b" : "t", frame.right + 16, label.y + 4,
                chart.series[label.series].name);
  }
}

}  // namespace

std::string Render(const LineChart& chart) {
  size_t longest = 0;
  for (const ChartSeries& series : chart.series) longest = std::max(longest, series.name.size());
  const double label_room = 20 + 6.2 * static_cast<double>(std::min<size_t>(longest, 22));
  const Extent x = ExtentOf(chart, &ChartPoint::x), y = ExtentOf(chart, &ChartPoint::y);
  const double y_low = chart.y_min.value_or(y.low), y_high = chart.y_max.value_or(y.high);
  const std::vector<double> y_ticks = YTicks(chart, y_low, y_high);
  std::vector<double> x_ticks = RoundTicks(x.low, x.high, 5);
  if (chart.whole_x) {
    x_ticks.erase(std::remove_if(x_ticks.begin(), x_ticks.end(),
                                 [](double tick) { return tick != std::round(tick); }),
                  x_ticks.end());
  }
  const double step = y_ticks.size() > 1 ? y_ticks[1] - y_ticks[0] : 1;
  const double rows = 14.0 * static_cast<double>(chart.series.size());
  Frame frame{
      chart.bytes ? 58.0 : 44.0, 20, kWidth - label_room, 20 + std::max(190.0, rows), 0, 0, 0, 0};
  frame.x_low = x.low;
  frame.x_high = x.high;
  // The axis ends on a round value unless the caller fixed it.
  frame.y_low = chart.y_min ? y_low : std::floor(y_low / step) * step;
  frame.y_high = chart.y_max ? y_high : std::ceil(y_high / step) * step;
  std::string out = Open(kWidth, frame.bottom + 36, chart.title);
  DrawAxes(chart, frame, x_ticks, YTicks(chart, frame.y_low, frame.y_high), out);
  std::vector<size_t> order(chart.series.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t i) { return !chart.series[i].emphasised; });
  for (const size_t index : order) DrawSeries(chart, frame, index, out);
  DrawEndLabels(chart, frame, out);
  return out + "</svg>\n";
}

namespace {

void DrawLegend(const StripMap& map, double y, std::string& out) {
  if (map.low_label.empty() && map.second_label.empty()) return;
  double x = 4;
  if (!map.low_label.empty()) {
    out += Text("t", x, y + 9, map.low_label);
    x += 6.2 * static_cast<double>(map.low_label.size()) + 8;
    for (int i = 0; i <= 5; ++i, x += 12) out += Cell(x, y, 12, 11, i / 5.0, 0, "");
    x += 6;
    out += Text("t", x, y + 9, map.high_label);
    x += 6.2 * static_cast<double>(map.high_label.size()) + 16;
  }
  if (!map.second_label.empty()) {
    out += Cell(x, y, 12, 11, 1, 1, "");
    out += Text("t", x + 18, y + 9, map.second_label);
  }
}

}  // namespace

std::string Render(const StripMap& map) {
  size_t longest = 0;
  for (const StripRow& row : map.rows) longest = std::max(longest, row.name.size());
  const double left = 8 + 6.2 * static_cast<double>(longest), right = kWidth - 4;
  const auto count = static_cast<double>(std::max<size_t>(1, map.rows.size()));
  const double height = std::clamp(360.0 / count, 7.0, 22.0);
  const bool every_name = height >= 11;
  const double bottom = 4 + height * count;
  const Frame frame{left, 4, right, bottom, 0, map.x_end, 0, 1};
  const bool legend = !map.low_label.empty() || !map.second_label.empty();
  std::string out = Open(kWidth, bottom + 34 + (legend ? 18 : 0), map.title);
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double y = 4 + height * static_cast<double>(r);
    if (every_name || r % 4 == 0) {
      out += Text("t e", left - 5, y + height / 2 + 4, map.rows[r].name);
    }
    for (const StripSpan& span : map.rows[r].spans) {
      out += Cell(frame.X(span.begin), y, frame.X(span.end) - frame.X(span.begin), height - 1,
                  span.value, span.kind, span.tip);
    }
  }
  for (const double x : RoundTicks(0, map.unit_ticks ? map.x_end - 1 : map.x_end, 6)) {
    if (map.unit_ticks && x != std::floor(x)) continue;
    out += Text("t m", frame.X(map.unit_ticks ? x + 0.5 : x), bottom + 13, ShortNumber(x));
  }
  out += Text("t m", (left + right) / 2, bottom + 27, map.x_label);
  DrawLegend(map, bottom + 36, out);
  return out + "</svg>\n";
}

std::string_view ChartStyle() {
  return R"(:root{--paper:#fff;--ink:#1c2430;--dim:#5b6573;--rule:#e3e7ec;--accent:#0b62c4;--second:#c2410c;
--c0:#0b62c4;--c1:#c2410c;--c2:#0f7b4f;--c3:#8b3fb8;--c4:#a16207;--c5:#0e7490;--c6:#be185d;--c7:#64748b}
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--ink:#e6eaf0;--dim:#9aa5b3;--rule:#2a323d;--accent:#5aa7ff;--second:#ff9255;
--c0:#5aa7ff;--c1:#ff9255;--c2:#4fcf96;--c3:#c792ea;--c4:#e3b341;--c5:#4dd0e1;--c6:#ff7eb6;--c7:#a3afbf}}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}svg .b{font-weight:600;fill:var(--ink)}
svg .m{text-anchor:middle}svg .e{text-anchor:end}svg .g{stroke:var(--rule)}svg .a{stroke:var(--dim)}
svg .l{fill:none;stroke-width:1.6;stroke-linejoin:round}svg .em{stroke-width:3}svg .da{stroke-dasharray:5 3}
svg .k0{fill:var(--accent)}svg .k1{fill:var(--second)}svg .kx{fill:none;stroke:var(--second);stroke-dasharray:2 2}
svg .c0{stroke:var(--c0)}svg .c1{stroke:var(--c1)}svg .c2{stroke:var(--c2)}svg .c3{stroke:var(--c3)}
svg .c4{stroke:var(--c4)}svg .c5{stroke:var(--c5)}svg .c6{stroke:var(--c6)}svg .c7{stroke:var(--c7)}
svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}svg .f3{fill:var(--c3)}
svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}svg .f6{fill:var(--c6)}svg .f7{fill:var(--c7)}
)";
}

}  // namespace kv::report
