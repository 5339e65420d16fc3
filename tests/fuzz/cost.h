// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// What an input makes a target do, in units that neither the machine nor its load changes. Counted
// in builds with KVTOOL_COUNT_STEPS; elsewhere every cost is 0.
namespace kv::fuzz {

struct Cost {
  uint64_t steps = 0;      // basic blocks of kvtool's own code that ran, loops in libraries apart
  uint64_t allocated = 0;  // bytes, in all calls together
};

bool CostIsCounted();
// Begins to count at 0.
void StartCost();
// What was counted since StartCost; counting ends.
Cost StopCost();

// An input of a few bytes may do what every input does: open, build tables, refuse.
inline constexpr double kFreeBytes = 4096;

// Steps for each byte that was read or allocated.
inline double StepRatio(const Cost& cost, size_t input_bytes) {
  const double bytes = static_cast<double>(input_bytes) + static_cast<double>(cost.allocated);
  return static_cast<double>(cost.steps) / (kFreeBytes + bytes);
}
// Bytes allocated for each byte that was read.
inline double MemoryRatio(const Cost& cost, size_t input_bytes) {
  return static_cast<double>(cost.allocated) / (kFreeBytes + static_cast<double>(input_bytes));
}

}  // namespace kv::fuzz
