// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/labels.h"

#include <algorithm>
#include <cmath>

namespace kv::report {
namespace {

std::vector<DotLabel> Places(double x, double y, double width) {
  std::vector<DotLabel> places;
  for (const double away : {0.0, 10.0, 20.0, 30.0, 42.0, 54.0}) {
    for (const double at : {y + 4 + away, y + 4 - away}) {
      places.push_back({x + 8, at, "", {x + 8, at - 10, x + 8 + width, at + 2}});
      places.push_back({x - 8, at, " e", {x - 8 - width, at - 10, x - 8, at + 2}});
    }
    for (const double at : {y - 8 - away, y + 17 + away}) {
      places.push_back({x, at, " m", {x - width / 2, at - 10, x + width / 2, at + 2}});
    }
  }
  return places;
}

}  // namespace

double Box::Overlap(const Box& other) const {
  const double width = std::min(right, other.right) - std::max(left, other.left);
  const double height = std::min(bottom, other.bottom) - std::max(top, other.top);
  return width > 0 && height > 0 ? width * height : 0;
}

std::vector<EndLabel> Spread(std::vector<EndLabel> labels, double top, double bottom, double step) {
  std::sort(labels.begin(), labels.end(), [](const EndLabel& a, const EndLabel& b) {
    return a.y != b.y ? a.y < b.y : a.series < b.series;
  });
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i].y = std::max(labels[i].y, i == 0 ? top : labels[i - 1].y + step);
  }
  double limit = bottom;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label, limit -= step) {
    label->y = std::min(label->y, limit);
  }
  return labels;
}

DotLabel PlaceAt(double x, double y, double width, const Box& inside,
                 const std::vector<Box>& taken) {
  DotLabel best{};
  double least = INFINITY;
  for (const DotLabel& place : Places(x, y, width)) {
    double cost = 9 * (place.box.Area() - place.box.Overlap(inside));
    for (const Box& other : taken) cost += place.box.Overlap(other);
    if (cost < least - 1e-6) {
      least = cost;
      best = place;
    }
  }
  return best;
}

}  // namespace kv::report
