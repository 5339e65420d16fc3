// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <string>

#include "lib/core/kernels/targets.h"

namespace kv::test {

// Runs `body` once per SIMD target that this build has and this CPU supports, then restores the
// best one. The name is for INFO.
inline void ForEachTarget(const std::function<void(const std::string&)>& body) {
  std::string best;
  for (const SimdTarget& target : SimdTargets()) {
    if (!target.supported) continue;
    if (best.empty()) best = target.name;
    ForceSimdTarget(target.name);
    body(target.name);
  }
  ForceSimdTarget(best);
}

}  // namespace kv::test
