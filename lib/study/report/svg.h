// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// Charts as inline SVG text: no script, no network, the same bytes for the same data. Colours are
// CSS variables (ChartStyle), so that a page follows the reader's light or dark setting. Charts are
// drawn 420 units wide and scale with the page; text stays readable on a phone.

struct ChartPoint {
  double x = 0, y = 0;
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;  // in drawing order; non-finite ones are left out
  bool emphasised = false;         // drawn thicker, on top
  bool dashed = false;
};

// Lines over two linear axes, with a name at the end of each line.
struct LineChart {
  std::string title;  // for screen readers and tooltips
  std::string x_label, y_label;
  std::vector<ChartSeries> series;
  std::optional<double> y_min = {}, y_max = {};  // else from the data, with round ends
  bool markers = false;                          // a dot with a tooltip at each point
  bool bytes = false;                            // y values are bytes: labelled in KiB, MiB ...
  bool whole_x = false;                          // x values are numbered things: whole ticks only
};
std::string Render(const LineChart& chart);

// Named points, x (above 0) on a logarithmic axis; a line joins those that no other beats on both.
struct ScatterPoint {
  std::string name;
  double x = 1, y = 0;
  bool emphasised = false;
};
struct ScatterChart {
  std::string title;
  std::string x_label, y_label;
  std::vector<ScatterPoint> points;  // non-finite ones are left out
};
std::string Render(const ScatterChart& chart);

// Rows of spans along one axis: which tokens a layer holds, or (spans of one unit) a heat map.
struct StripSpan {
  double begin = 0, end = 0;
  double value = 0;      // 0 .. 1: how strong the colour is; not finite: hatched
  int kind = 0;          // 0: the accent colour, 1: the second one
  std::string tip = {};  // tooltip
};
struct StripRow {
  std::string name;
  std::vector<StripSpan> spans;
};
struct StripMap {
  std::string title, x_label;
  double x_end = 1;
  bool unit_ticks = false;  // columns are numbered things: ticks in the middle of a column
  std::vector<StripRow> rows;
  // What the ends of the colour scale mean; empty: no legend.
  std::string low_label, high_label, second_label;
};
std::string Render(const StripMap& map);

// The custom properties and rules that charts refer to, for a <style> element.
std::string_view ChartStyle();

// "1 234", "0.25", "1.2e-05": at most four significant digits, no trailing zeros.
std::string ShortNumber(double value);
std::string ShortBytes(double bytes);
// &, <, >, " as entities; control characters as \xNN.
std::string EscapeMarkup(std::string_view text);
// Round steps that cover [low, high] in about `count` pieces: 1, 2 or 5 times a power of ten.
std::vector<double> RoundTicks(double low, double high, int count);

}  // namespace kv::report
