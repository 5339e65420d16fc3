// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

namespace kv::fuzz {

// Inputs that a target took to the end instead of refusing them. A target that forgives refusals
// says nothing when it refuses everything: a replay of its corpus fails then.
inline uint64_t accepted = 0;

}  // namespace kv::fuzz
