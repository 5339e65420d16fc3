// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// Renders charts as inline SVG, without scripts and network access. Equal data give equal bytes.
// Colours are CSS variables (ChartStyle), so a page follows the reader's light or dark setting.
// Charts are drawn 420 units wide and scale with the page; their text stays readable on a phone.
// Implemented by svg.cc and svg_scatter.cc; svg_text.h has the elements.

struct ChartPoint {
  double x = 0, y = 0;
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // in drawing order; those that are not finite are left out
  bool emphasised = false;         // drawn thicker, on top
  bool dashed = false;
};

// A chart of lines over two linear axes, with a name at the end of each line.
struct LineChart {
  std::string title;  // for screen readers and tooltips
  std::string x_label, y_label;
  std::vector<ChartSeries> series;
  std::optional<double> y_min = {}, y_max = {};  // by default round values around the data
  bool markers = false;                          // draws a dot with a tooltip at each point
  bool bytes = false;                            // labels y values in KiB, MiB and so on
  bool whole_x = false;                          // x values count things: ticks are whole
};
std::string Render(const LineChart& chart);

// A point of a scatter chart, named unless it is one of many. x must be above 0.
struct ScatterPoint {
  std::string name;
  double x = 1, y = 0;
  bool emphasised = false;
};
// A chart of points over a logarithmic x axis. A line joins the points that no other point beats on
// both axes.
struct ScatterChart {
  std::string title;
  std::string x_label, y_label;
  std::vector<ScatterPoint> points;  // those that are not finite are left out
  bool low_y_is_better = false;      // than a high one; a high x always is
};
std::string Render(const ScatterChart& chart);

// A span in a row of a strip map.
struct StripSpan {
  double begin = 0, end = 0;
  double value = 0;      // strength of the colour, 0 to 1; hatched if not finite
  int kind = 0;          // 0 for the accent colour, 1 for the second colour
  std::string tip = {};  // the tooltip
};
struct StripRow {
  std::string name;
  std::vector<StripSpan> spans;
};
// A map of rows of spans along one axis. It shows which tokens a layer holds, or, with spans of one
// unit, a heat map.
struct StripMap {
  std::string title, x_label;
  double x_end = 1;
  bool unit_ticks = false;  // columns count things: ticks stand in the middle of a column
  std::vector<StripRow> rows;
  // What the ends of the colour scale mean. Without them there is no legend.
  std::string low_label, high_label, second_label;
};
std::string Render(const StripMap& map);

// The custom properties and rules that charts use, for a <style> element.
std::string_view ChartStyle();

// Writes a number with at most four significant digits and no trailing zeros: "1 234", "0.25",
// "1.2e-05".
std::string ShortNumber(double value);
std::string ShortBytes(double bytes);
// Escapes &, <, > and " as entities, and control characters as \xNN.
std::string EscapeMarkup(std::string_view text);
// Returns round values that divide [low, high] into about `count` steps of 1, 2 or 5 times a power
// of ten.
std::vector<double> RoundTicks(double low, double high, int count);

}  // namespace kv::report
