// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// Returns true if charts can draw a value: scaling the largest ones would overflow.
bool IsDrawn(double value);
// Returns true if an axis can distinguish the values of a range, which is impossible if only their
// last bits differ.
bool IsRange(double low, double high);

// Draws charts and writes them as SVG, without scripts and network access, or as PDF. Equal data
// give equal bytes. A chart is 356 units wide, the width of a phone's page, so that its text of 12
// units is 12 px there. Implemented by chart.cc with the marks of svg_text.h, and by pdf.cc.

// One thing that is drawn. `classes` names its styles, separated by blanks (svg_text.h).
struct Mark {
  enum class Kind { kLine, kRect, kCircle, kPath, kText };
  struct Step {  // a step of a path
    char to;     // 'M': begin here; 'L': draw a line to here; 'Z': close the path
    double x = 0, y = 0;
  };
  Kind kind = Kind::kLine;
  std::string classes = {};
  double x = 0, y = 0;
  double right = 0, bottom = 0;     // second end of a line, or opposite corner of a rectangle
  double radius = 0;                // radius of a circle
  double strength = 1;              // opacity of its fill
  std::vector<Step> steps = {};     // steps of a path
  std::string text = {}, tip = {};  // as the caller gave them; writing escapes them
};

// A drawn chart.
struct Picture {
  std::string title;  // shown above the chart; also names its file
  double width = 0, height = 0;
  std::vector<Mark> marks = {};

  // Returns markup for a page with ChartStyle. The description is for screen readers.
  std::string Inline(std::string_view description = {}) const;
  // Returns a file of its own, with its colours for light and dark readers.
  std::string File(std::string_view description = {}) const;
  // Returns a file of one page for papers. Its letters are those of Western Europe (others become
  // '?'), because the fonts are the ones that every reader has.
  std::string Pdf() const;
  // Returns the picture with a caption below.
  Picture WithCaption(std::string_view caption) const;
};

struct ChartPoint {
  double x = 0, y = 0;
  std::string name = {};  // written beside the point if there is space, and in its tooltip
};

struct ChartSeries {
  std::string name;                // written in the legend; if empty, the series has no entry
  std::vector<ChartPoint> points;  // in drawing order; a missing value leaves a gap
  bool emphasised = false;         // drawn thicker, on top
  bool dashed = false;
  bool joined = true;  // false: only points, each of which may represent another thing
  bool named = true;   // false: names of points are only tooltips
};

// A requested value, drawn as a line across the chart.
struct ChartTarget {
  double at = 0;
  std::string name;
  bool is_y = false;  // `at` is a value of y, otherwise of x
};

// Unit of an axis. Its values are short on the axis, and in tooltips as tables write them.
// kMeasured has three significant digits, as format::Nats; kRate is a speed, as format::Rate.
enum class Unit { kNumber, kBytes, kPercent, kFactor, kMeasured, kRate };

// A chart of lines and points over two axes.
struct LineChart {
  std::string title;
  std::string x_label, y_label;
  std::vector<ChartSeries> series;
  std::optional<double> y_min = {}, y_max = {};  // by default round values around the data
  bool markers = false;                          // draws a dot with a tooltip at each point
  Unit x_unit = Unit::kNumber, y_unit = Unit::kNumber;
  bool whole_x = false;               // x values count things: ticks are whole
  bool log_x = false, log_y = false;  // points at or below 0 are not drawn
  std::vector<ChartTarget> targets = {};
};
Picture Render(const LineChart& chart);
// Returns an empty chart over the numbers of layers.
LineChart ChartByLayer(std::string title, std::string y_label, std::optional<double> y_min = {});
// Returns points for K and for V of `figure` for each layer that has them.
template <typename Layer, typename Figure>
std::vector<ChartSeries> SeriesOfTensors(const std::vector<Layer>& layers, const Figure& figure,
                                         const std::string& suffix = "", bool emphasised = false) {
  ChartSeries k{"K" + suffix, {}, emphasised, false, false};
  ChartSeries v{"V" + suffix, {}, emphasised, false, false};
  for (const Layer& layer : layers) {
    const auto x = static_cast<double>(layer.layer);
    if (layer.k) k.points.push_back({x, figure(*layer.k)});
    if (layer.v) v.points.push_back({x, figure(*layer.v)});
  }
  return {k, v};
}

// Returns the points that no other one beats, from the right to the left. A high x is better than a
// low one, as is a high y unless `low_y_is_better`.
std::vector<ChartPoint> Frontier(std::vector<ChartPoint> points, bool low_y_is_better);

// A span in a row of a strip map.
struct StripSpan {
  double begin = 0, end = 0;
  double value = 0;      // strength of the colour, 0 to 1; if not finite, only an outline
  int kind = 0;          // 0 for the accent colour, 1 for the second colour
  std::string tip = {};  // the tooltip
};
struct StripRow {
  std::string name;
  std::vector<StripSpan> spans;
};
// A map of rows of spans along one axis. It shows which tokens a layer holds, or, with spans of one
// unit, a heat map. Rows beyond the first 256 are counted, not drawn.
struct StripMap {
  std::string title, x_label;
  double x_end = 1;
  bool unit_ticks = false;  // columns are counts: ticks are in the middle of a column
  std::vector<StripRow> rows;
  // Labels of the ends of the colour scale; without a low end, only of the accent colour. Without
  // labels there is no legend.
  std::string low_label, high_label, second_label;
};
Picture Render(const StripMap& map);
// MapColumns returns the columns that stand for `extent` things in a map of `rows` rows, so that a
// page stays small whatever the cache; HasRoomForTips returns true if each cell has room for a
// tooltip.
uint64_t MapColumns(uint64_t extent, uint64_t rows);
bool HasRoomForTips(uint64_t columns, uint64_t rows);

// Returns the custom properties and rules that charts use, for a <style> element.
std::string ChartStyle();

// Writes a number with at most four significant digits and no trailing zeros: "1 234", "0.25",
// "1.2e-05".
std::string ShortNumber(double value);
std::string ShortBytes(double bytes);
// Makes untrusted text safe in markup: &, <, > and " become entities; control characters,
// bidirectional controls and bytes that are not UTF-8 become \xNN.
std::string EscapeMarkup(std::string_view text);
// Returns round values that divide [low, high] into about `count` steps of 1, 2 or 5 times a power
// of ten.
std::vector<double> RoundTicks(double low, double high, int count);

}  // namespace kv::report
