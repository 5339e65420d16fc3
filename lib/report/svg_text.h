// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// An axis from `begin` to `end` on the page, which shows the values from `low` to `high`.
struct Axis {
  double begin = 0, end = 0;
  double low = 0, high = 1;
  bool is_log = false;
  bool bytes = false;  // labels in KiB, MiB and so on
  bool whole = false;  // values count things: ticks are whole

  double At(double value) const {
    const double share = is_log ? std::log(value / low) / std::max(std::log(high / low), 1e-300)
                                : (value - low) / std::max(high - low, 1e-300);
    return begin + share * (end - begin);
  }
  std::vector<double> Ticks() const;
  std::string Label(double value) const;
  // Extends the axis to ticks.
  void RoundLow();
  void RoundHigh();
};

// The few SVG elements that charts are made of, as text.

inline constexpr double kChartWidth = 400;
inline constexpr int kChartColours = 8;

std::string Coordinate(double value);  // with at most two decimals
std::string Line(std::string_view classes, double x1, double y1, double x2, double y2);
std::string Text(std::string_view classes, double x, double y, std::string_view text);
// The same, cut to `letters`; then the whole text is a tooltip.
std::string Text(std::string_view classes, double x, double y, std::string_view text,
                 size_t letters);
// The mark of a point: a circle, square, triangle or diamond, so that colour is not all that tells
// series apart.
std::string Dot(size_t series, double x, double y, double radius, std::string_view tip);
// How wide a text is at most, in about; letters are counted, not bytes.
double TextWidth(std::string_view text);
size_t Letters(std::string_view text);

// The rules of ChartStyle with literal colours, for files that stand alone.
std::string FileStyle();

}  // namespace kv::report
