// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "lib/report/svg.h"

namespace kv::report {

// An axis from `begin` to `end` on the page, which shows the values from `low` to `high`.
struct Axis {
  double begin = 0, end = 0;
  double low = 0, high = 1;
  bool is_log = false;
  Unit unit = Unit::kNumber;
  bool whole = false;  // values count things: ticks are whole

  double At(double value) const {
    const double share = is_log ? (std::log(value) - std::log(low)) /
                                      std::max(std::log(high) - std::log(low), 1e-300)
                                : (value - low) / std::max(high - low, 1e-300);
    return begin + share * (end - begin);
  }
  std::vector<double> Ticks() const;
  std::string Label(double value) const;  // label of a tick
  std::string Exact(double value) const;  // as tables write it
  // Extends the axis to ticks.
  void RoundLow();
  void RoundHigh();
};

inline constexpr double kChartWidth = 356;
inline constexpr int kChartColours = 8;
inline constexpr double kRow = 15;  // height of a line of text

using Marks = std::vector<Mark>;

Mark Line(std::string_view classes, double x1, double y1, double x2, double y2);
Mark Rect(std::string_view classes, double x, double y, double width, double height);
Mark Text(std::string_view classes, double x, double y, std::string_view text);
// Draws a text cut to `width`; if it was cut, the whole text is its tooltip.
Mark Text(std::string_view classes, double x, double y, std::string_view text, double width);
// Returns the mark of a point: a circle, square, triangle or diamond, so that series differ not
// only by colour.
Mark Dot(size_t series, double x, double y, double radius, std::string_view tip);

// Width of a text of 12 units: TextWidth is roughly the most on a screen, PdfWidth is exact for
// ASCII.
double TextWidth(std::string_view text);
double PdfWidth(std::string_view text, bool is_bold = false);

// Draws labels of ticks below an axis, each `shift` further right: labels move inwards if they
// would leave the chart, and are omitted if they would overlap.
void DrawTickLabels(const Axis& axis, double shift, double y, Marks& marks);

// Entries side by side in rows below a chart, in their order.
struct LegendEntry {
  std::vector<Mark> marks;  // drawn around (0, 0), the left end's middle
  double width = 0;         // width of the marks
  std::string text;
  bool is_bold = false;
};
// Draws the entries from `top` on and returns where they end.
double DrawLegend(const std::vector<LegendEntry>& entries, double top, Marks& marks);
// Puts the picture's title above the drawing.
void DrawTitle(Picture& picture);

// Stroke and fill of a mark, as names of colours; empty for none.
struct Paint {
  std::string_view stroke, fill, dash;
  double width = 1;
};
Paint ChoosePaint(const Mark& mark);
// Returns "#rrggbb" of a named colour on white paper.
std::string_view LightColour(std::string_view name);

// Returns the rules of ChartStyle with literal colours, for self-contained files.
std::string FileStyle();
std::string Coordinate(double value);  // writes at most two decimals

}  // namespace kv::report
