// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

namespace kv {

// The tokens [begin, end) of a cache.
struct TokenRange {
  uint64_t begin = 0, end = 0;
};

}  // namespace kv
