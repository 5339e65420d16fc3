// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A separate object file: libkvtool has its own version (lib/api/inside.cc), and a linker takes
// only one of the two.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "lib/core/base/error.h"

namespace kv {

void AssertionFailed(const char* expression, const char* file, int line) {
  std::fputs(fmt::format("{}:{}: broken invariant: {}\n", file, line, expression).c_str(), stderr);
  std::abort();
}

}  // namespace kv
