// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kv {

struct SimdTarget {
  std::string name;  // Highway's names: "AVX3", "AVX2", "SSE4", "SSSE3", "SCALAR"
  bool supported = false;
  bool active = false;
};

// Lists the targets that this build contains, best first.
std::vector<SimdTarget> SimdTargets();
// Returns the name of the target that kernels use.
std::string ActiveSimdTarget();
// Makes every kernel use the named target, in any case. Returns false if there is no such target or
// this CPU does not support it.
bool ForceSimdTarget(std::string_view name);

}  // namespace kv
