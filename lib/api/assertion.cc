// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include "lib/core/base/error.h"

namespace kv {

// A library does not end the process that it serves: a broken invariant ends the call, as KV9001.
// Takes the place of lib/core/base/assertion.cc.
void AssertionFailed(const char* expression, const char* file, int line) {
  throw Error(Finding::kInternal, "{}:{}: broken invariant: {}", file, line, expression);
}

}  // namespace kv
