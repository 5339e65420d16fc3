// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/study/report/svg.h"
#include "lib/study/report/svg_text.h"

namespace kv::report {
namespace {

constexpr double kScatterWidth = 420, kLeft = 40, kTop = 20, kRight = 412, kBottom = 236;
constexpr double kLetter = 6.2;

struct Box {
  double left, top, right, bottom;

  double Overlap(const Box& other) const {
    const double width = std::min(right, other.right) - std::max(left, other.left);
    const double height = std::min(bottom, other.bottom) - std::max(top, other.top);
    return width > 0 && height > 0 ? width * height : 0;
  }
};

// 1, 2 and 5 times powers of ten in the range; of a wide range the powers alone.
std::vector<double> LogTicks(double low, double high) {
  const bool wide = high / low > 300;
  std::vector<double> ticks;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = power * factor;
      if (tick >= low && tick <= high && (!wide || factor == 1)) ticks.push_back(tick);
    }
  }
  return ticks;
}

// What the picture spans: x as logarithms, y with round ends.
struct Plane {
  double x_low = INFINITY, x_high = 0, y_low = INFINITY, y_high = -INFINITY;

  double X(double x) const {
    return kLeft + std::log(x / x_low) / std::log(x_high / x_low) * (kRight - kLeft);
  }
  double Y(double y) const { return kBottom - (y - y_low) / (y_high - y_low) * (kBottom - kTop); }
};

Plane PlaneOf(const std::vector<const ScatterPoint*>& points) {
  Plane plane;
  for (const ScatterPoint* point : points) {
    plane.x_low = std::min(plane.x_low, point->x);
    plane.x_high = std::max(plane.x_high, point->x);
    plane.y_low = std::min(plane.y_low, point->y);
    plane.y_high = std::max(plane.y_high, point->y);
  }
  if (points.empty()) plane = {1, 1, 1, 1};
  plane.x_low /= 1.4;  // no dot on the frame
  plane.x_high *= 1.4;
  if (plane.y_high - plane.y_low < 1e-9) {
    plane.y_low -= 0.5;
    plane.y_high += 0.5;
  }
  const double margin = (plane.y_high - plane.y_low) / 20;
  plane.y_low -= margin;
  plane.y_high += margin;
  const std::vector<double> round = RoundTicks(plane.y_low, plane.y_high, 5);
  const double step = round.size() > 1 ? round[1] - round[0] : 1;
  plane.y_low = std::floor(plane.y_low / step) * step;
  plane.y_high = std::ceil(plane.y_high / step) * step;
  return plane;
}

void DrawAxes(const ScatterChart& chart, const Plane& plane, std::string& out) {
  for (const double y : RoundTicks(plane.y_low, plane.y_high, 5)) {
    out += Line("g", kLeft, plane.Y(y), kRight, plane.Y(y));
    out += Text("t e", kLeft - 5, plane.Y(y) + 4, ShortNumber(y));
  }
  for (const double x : LogTicks(plane.x_low, plane.x_high)) {
    out += Line("g", plane.X(x), kTop, plane.X(x), kBottom);
    out += Text("t m", plane.X(x), kBottom + 14, ShortNumber(x));
  }
  out += Line("a", kLeft, kBottom, kRight, kBottom);
  out += Text("t m", (kLeft + kRight) / 2, kBottom + 29, chart.x_label);
  out += Text("t", 2, 11, chart.y_label);
}

struct Dot {
  double x, y;  // in the picture
  const ScatterPoint* point;
};

struct Label {
  double x, y;
  const char* anchor;
  Box box;
};

// Where a name can stand: beside its dot, above, below, or a little further off.
std::vector<Label> Places(const Dot& dot) {
  const double width =
      (kLetter + (dot.point->emphasised ? 0.6 : 0)) * static_cast<double>(dot.point->name.size());
  std::vector<Label> places;
  for (const double away : {0.0, 9.0, 18.0, 27.0}) {
    for (const double y : {dot.y + 4 + away, dot.y + 4 - away}) {
      places.push_back({dot.x + 8, y, "", {dot.x + 8, y - 9, dot.x + 8 + width, y + 2}});
      places.push_back({dot.x - 8, y, " e", {dot.x - 8 - width, y - 9, dot.x - 8, y + 2}});
    }
    for (const double y : {dot.y - 8 - away, dot.y + 16 + away}) {
      places.push_back({dot.x, y, " m", {dot.x - width / 2, y - 9, dot.x + width / 2, y + 2}});
    }
  }
  return places;
}

// The first place that hides nothing, or the one that hides least.
Label Place(const Dot& dot, const std::vector<Box>& taken) {
  const Box inside{kLeft, kTop - 6, kScatterWidth, kBottom};
  Label best{};
  double least = INFINITY;
  for (const Label& place : Places(dot)) {
    const Box& box = place.box;
    double cost = 9 * ((box.right - box.left) * (box.bottom - box.top) - box.Overlap(inside));
    for (const Box& other : taken) cost += box.Overlap(other);
    if (cost < least - 1e-6) {
      least = cost;
      best = place;
    }
  }
  return best;
}

// The points that no other beats on both axes, joined from left to right.
std::string Frontier(std::vector<Dot> dots, bool low_y_is_better) {
  // Downwards on the page, y grows.
  const auto cost = [&](const Dot& dot) { return low_y_is_better ? -dot.y : dot.y; };
  std::sort(dots.begin(), dots.end(),
            [&](const Dot& a, const Dot& b) { return a.x != b.x ? a.x > b.x : cost(a) < cost(b); });
  std::string path;
  double least = INFINITY;
  for (const Dot& dot : dots) {
    if (cost(dot) >= least) continue;
    least = cost(dot);
    path += fmt::format("{}{} {}", path.empty() ? "M" : "L", Coordinate(dot.x), Coordinate(dot.y));
  }
  return path.empty() ? path : fmt::format("<path class=\"l da g\" d=\"{}\"/>\n", path);
}

}  // namespace

std::string Render(const ScatterChart& chart) {
  std::vector<const ScatterPoint*> points;
  for (const ScatterPoint& point : chart.points) {
    if (std::isfinite(point.y) && std::isfinite(point.x) && point.x > 0) points.push_back(&point);
  }
  const Plane plane = PlaneOf(points);
  std::string out = Open(kScatterWidth, kBottom + 36, chart.title);
  DrawAxes(chart, plane, out);
  std::vector<Dot> dots;
  std::vector<Box> taken;
  for (const ScatterPoint* point : points) {
    const Dot& dot = dots.emplace_back(Dot{plane.X(point->x), plane.Y(point->y), point});
    taken.push_back({dot.x - 5, dot.y - 5, dot.x + 5, dot.y + 5});
  }
  out += Frontier(dots, chart.low_y_is_better);
  // Those that matter most choose their places first and are drawn on top.
  std::stable_partition(dots.begin(), dots.end(),
                        [](const Dot& dot) { return dot.point->emphasised; });
  std::string names;
  for (const Dot& dot : dots) {
    if (dot.point->name.empty()) continue;
    const Label label = Place(dot, taken);
    taken.push_back(label.box);
    names += Text(fmt::format("{}{}", dot.point->emphasised ? "t b" : "t", label.anchor), label.x,
                  label.y, dot.point->name);
  }
  std::reverse(dots.begin(), dots.end());
  for (const Dot& dot : dots) {
    const std::string numbers =
        fmt::format("{}, {}", ShortNumber(dot.point->x), ShortNumber(dot.point->y));
    const std::string tip =
        dot.point->name.empty() ? numbers : fmt::format("{}: {}", dot.point->name, numbers);
    out += fmt::format(
        "<circle class=\"f{}\" cx=\"{}\" cy=\"{}\" r=\"{}\"><title>{}</title></circle>\n",
        dot.point->emphasised ? 0 : 7, Coordinate(dot.x), Coordinate(dot.y),
        dot.point->emphasised ? 4.5 : 3.0, EscapeMarkup(tip));
  }
  return out + names + "</svg>\n";
}

}  // namespace kv::report
