// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/fuzz/cost.h"

namespace kv::fuzz {

using Input = std::vector<uint8_t>;

// The most expensive inputs that a search found, one for each measure.
struct Slowest {
  Input by_steps, by_memory;
  double steps = 0, memory = 0;
  uint64_t tried = 0;
};

// Mutates the given inputs towards more expensive ones until the time is up. Repeatable, except for
// how far it gets.
Slowest SearchSlowest(const std::vector<Input>& corpus, std::chrono::seconds duration,
                      uint64_t seed, const std::function<Cost(const Input&)>& run);

}  // namespace kv::fuzz
