// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

namespace kv::report {

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

// The rules of style.cc with literal colours, for files that stand alone.
std::string FileStyle();

}  // namespace kv::report
