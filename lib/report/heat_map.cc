// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/report/svg.h"
#include "lib/report/svg_text.h"

namespace kv::report {
namespace {

constexpr size_t kMostRows = 256;
constexpr size_t kMostNameLetters = 18;
constexpr uint64_t kMostCells = 24'000, kMostColumns = 240, kMostTips = 1500;
constexpr int kShades = 20;
constexpr double kTop = 4;

// How a cell is painted: an outline, or one of a few strengths of a colour.
struct Paint {
  int kind = 0, shade = -1;  // -1: an outline

  static Paint Of(double value, int kind) {
    if (!std::isfinite(value)) return {};
    return {kind, static_cast<int>(std::lround(std::clamp(value, 0.0, 1.0) * kShades))};
  }
  std::string Attributes() const {
    if (shade < 0) return "class=\"kx\"";
    return fmt::format("class=\"k{}\" fill-opacity=\"{}\"", kind,
                       Coordinate(0.06 + 0.94 * shade / kShades));
  }
  bool operator<(const Paint& other) const {
    return kind != other.kind ? kind < other.kind : shade < other.shade;
  }
};

std::string Cell(const Paint& paint, double x, double y, double width, double height,
                 std::string_view tip) {
  return fmt::format("<rect {} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}", paint.Attributes(),
                     Coordinate(x), Coordinate(y), Coordinate(std::max(width, 0.4)),
                     Coordinate(height),
                     tip.empty() ? std::string("/>\n")
                                 : fmt::format("><title>{}</title></rect>\n", EscapeMarkup(tip)));
}

void DrawLegend(const StripMap& map, double y, std::string& out) {
  double x = 4;
  if (!map.low_label.empty()) {
    out += Text("t", x, y + 10, map.low_label);
    x += TextWidth(map.low_label) + 8;
    for (int i = 0; i <= 5; ++i, x += 12) out += Cell(Paint::Of(i / 5.0, 0), x, y, 12, 11, "");
    x += 6;
    out += Text("t", x, y + 10, map.high_label);
    x += TextWidth(map.high_label) + 16;
  } else if (!map.high_label.empty()) {
    out += Cell(Paint::Of(1, 0), x, y, 12, 11, "");
    out += Text("t", x + 18, y + 10, map.high_label);
    x += 18 + TextWidth(map.high_label) + 16;
  }
  if (!map.second_label.empty()) {
    out += Cell(Paint::Of(1, 1), x, y, 12, 11, "");
    out += Text("t", x + 18, y + 10, map.second_label);
  }
}

// A row's cells. Those without a tooltip are gathered by their paint: a path for many is a fraction
// of the bytes.
void DrawRow(const StripRow& row, const Axis& axis, double y, double height,
             std::map<Paint, std::string>& paths, std::string& out) {
  for (const StripSpan& span : row.spans) {
    const double x = axis.At(span.begin), width = axis.At(span.end) - x;
    const Paint paint = Paint::Of(span.value, span.kind);
    if (!span.tip.empty()) {
      out += Cell(paint, x, y, width, height, span.tip);
      continue;
    }
    const std::string across = Coordinate(std::max(width, 0.4));
    paths[paint] += fmt::format("M{} {}h{}v{}h-{}z", Coordinate(x), Coordinate(y), across,
                                Coordinate(height), across);
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
  size_t longest = 0;
  for (const StripRow& row : map.rows) longest = std::max(longest, Letters(row.name));
  longest = std::min(longest, kMostNameLetters + 1);
  const double left = 8 + 6.6 * static_cast<double>(longest);
  const double height =
      std::clamp(360.0 / static_cast<double>(std::max<size_t>(1, rows)), 4.0, 22.0);
  const auto every = static_cast<size_t>(std::ceil(13 / height));  // row that has room for its name
  const double bottom = kTop + height * static_cast<double>(rows);
  Axis axis{left, kChartWidth - 4, 0, std::max(map.x_end, 1e-9)};
  Picture picture{map.title, kChartWidth, bottom + 36, {}};
  std::string& out = picture.body;
  std::map<Paint, std::string> paths;
  for (size_t r = 0; r < rows; ++r) {
    const double y = kTop + height * static_cast<double>(r);
    if (r % every == 0) {
      out += Text("t e", left - 5, y + height / 2 + 4, map.rows[r].name, kMostNameLetters);
    }
    DrawRow(map.rows[r], axis, y, height > 6 ? height - 1 : height, paths, out);
  }
  for (const auto& [paint, path] : paths) {
    out += fmt::format("<path {} d=\"{}\"/>\n", paint.Attributes(), path);
  }
  Axis ticks = axis;
  ticks.whole = map.unit_ticks;
  if (map.unit_ticks) ticks.high = std::max(axis.high - 1, 1e-9);
  for (const double x : ticks.Ticks()) {
    out += Text("t m", axis.At(map.unit_ticks ? x + 0.5 : x), bottom + 14, ShortNumber(x));
  }
  out += Text("t m", (left + axis.end) / 2, bottom + 29, map.x_label);
  if (!map.high_label.empty() || !map.second_label.empty()) {
    DrawLegend(map, bottom + 38, out);
    picture.height += 18;
  }
  if (rows < map.rows.size()) {
    out += Text("t", 4, picture.height + 4, fmt::format("{} more rows", map.rows.size() - rows));
    picture.height += 14;
  }
  return picture;
}

}  // namespace kv::report
