// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

namespace kv::report {

// The few SVG elements that charts are made of, as text, for svg.cc and svg_scatter.cc.

std::string Coordinate(double value);  // with at most two decimals
std::string Open(double width, double height, std::string_view title);
std::string Line(std::string_view classes, double x1, double y1, double x2, double y2);
std::string Text(std::string_view classes, double x, double y, std::string_view text);
// A coloured rectangle. `strength` is from 0 to 1; if it is not finite, only an outline is drawn.
std::string Cell(double x, double y, double width, double height, double strength, int kind,
                 std::string_view tip);

}  // namespace kv::report
