// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kv::report {

// Where labels stand, so that none hides another.

struct Box {
  double left, top, right, bottom;

  double Area() const { return (right - left) * (bottom - top); }
  double Overlap(const Box& other) const;
};

// Labels in a column beside the plot, each as near to the height of its line's end as the others
// allow.
struct EndLabel {
  double y;
  size_t series;
};
std::vector<EndLabel> Spread(std::vector<EndLabel> labels, double top, double bottom, double step);

// A label at a dot: beside it, above, below, or a little further off.
struct DotLabel {
  double x, y;         // of the text
  const char* anchor;  // the class that aligns it
  Box box;
};
// The first place that hides nothing that is taken, or the one that hides least.
DotLabel PlaceAt(double x, double y, double width, const Box& inside,
                 const std::vector<Box>& taken);

}  // namespace kv::report
