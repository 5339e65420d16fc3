// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// The cost of an input in units that do not depend on the machine or its load. Counted in builds
// with KVTOOL_COUNT_STEPS; elsewhere every cost is 0.
namespace kv::fuzz {

struct Cost {
  uint64_t steps = 0;      // executed basic blocks of our code, without library code
  uint64_t allocated = 0;  // sum of the sizes of all allocations
};

bool CostIsCounted();
// Resets the cost to 0 and starts counting.
void StartCost();
// Stops counting and returns the cost since StartCost.
Cost StopCost();

// Allowance of every input, however short: opening, building tables, refusing.
inline constexpr double kFreeBytes = 4096;

// Returns the steps per byte that was read or allocated.
inline double StepRatio(const Cost& cost, size_t input_bytes) {
  const double bytes = static_cast<double>(input_bytes) + static_cast<double>(cost.allocated);
  return static_cast<double>(cost.steps) / (kFreeBytes + bytes);
}
// Returns the bytes allocated per byte that was read.
inline double MemoryRatio(const Cost& cost, size_t input_bytes) {
  return static_cast<double>(cost.allocated) / (kFreeBytes + static_cast<double>(input_bytes));
}

}  // namespace kv::fuzz
