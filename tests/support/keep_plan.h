// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>

#include "lib/core/snapshot/select.h"

namespace kv::test {

inline bool Keeps(const KeepPlan& plan, uint32_t token) {
  return std::any_of(plan.begin(), plan.end(), [&](const KeepRange& range) {
    return range.begin <= token && token < range.end();
  });
}

}  // namespace kv::test
