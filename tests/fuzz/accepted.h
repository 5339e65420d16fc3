// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

namespace kv::fuzz {

// Counts inputs that a target accepted. A target that tolerates refusals proves nothing if it
// refuses everything, so the replay of such a corpus fails.
inline uint64_t accepted = 0;

}  // namespace kv::fuzz
