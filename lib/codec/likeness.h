// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <vector>

#include "lib/codec/rotation.h"

// Which earlier row each row resembles most. Tokens come back, and what a layer makes of them comes
// back with them: nearly so in the first layers, still visibly in the middle of a model.
namespace kv {

struct Likeness {
  uint32_t likeness = 0;  // class, see channel_model.h
  uint32_t distance = 0;  // in rows; 0 for class 0
};

// One per row of `x`, rows x columns floats. Rows are compared as they were before rotation, each
// channel by its deviation from its mean. The choice is the same on every machine.
std::vector<Likeness> FindLikenesses(const float* x, uint64_t rows, uint64_t columns,
                                     const Rotation& rotation);

}  // namespace kv
