// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kv {

struct SimdTarget {
  std::string name;  // Highway's: "AVX3", "AVX2", "SSE4", "SSSE3", "SCALAR"
  bool supported = false;
  bool active = false;
};

// The targets this build contains, best first.
std::vector<SimdTarget> SimdTargets();
std::string ActiveSimdTarget();
// Makes every kernel use one target, by case-insensitive name; false if unknown or unsupported
// here.
bool ForceSimdTarget(std::string_view name);

}  // namespace kv
