// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
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

}  // namespace kv::report
