// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/fields/fields.h"

namespace kv {

// Summarises many values. Range, mean and (population) deviation are over the finite ones, and NaN
// (null in JSON) if there are none.
struct ValueSummary {
  uint64_t values = 0, nan_count = 0, infinite_count = 0, zero_count = 0;
  double min = 0, max = 0, mean = 0, standard_deviation = 0;
};

const Fields<ValueSummary>& ValueSummaryFields();

// Accumulates values one by one without storing them (Welford's method). The results depend on the
// values and their order alone.
class Moments {
 public:
  // Adds a value that occurs `count` times.
  void Add(double value, uint64_t count = 1);
  ValueSummary Finish() const;

 private:
  ValueSummary summary_;
  uint64_t finite_ = 0;
  double squares_ = 0;
};

}  // namespace kv
