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
constexpr double kMostRowNameWidth = 120;
constexpr uint64_t kMostCells = 24'000, kMostColumns = 240, kMostTips = 1500;
constexpr int kShades = 20;
constexpr double kTop = 4;

// How a cell is painted: an outline, or one of several strengths of a colour.
struct Shade {
  int kind = 0, shade = -1;  // -1: an outline

  static Shade From(double value, int kind) {
    if (!std::isfinite(value)) return {};
    return {kind, static_cast<int>(std::lround(std::clamp(value, 0.0, 1.0) * kShades))};
  }
  // Gives a mark its look.
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

std::vector<LegendEntry> LegendOf(const StripMap& map) {
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

// A row's cells. Those without a tooltip are gathered by their shade: a path for many is a fraction
// of the bytes.
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
  const auto every = static_cast<size_t>(std::ceil(13 / height));  // row that has room for its name
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
  picture.height = DrawLegend(LegendOf(map), picture.height, out);
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
