// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/targets.h"

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <strings.h>

namespace kv {
namespace {

// The scalar references are the specification, so every build must be able to run them.
static_assert((HWY_TARGETS & HWY_SCALAR) != 0);

std::vector<int64_t> Generated() {
  std::vector<int64_t> targets;
  for (int64_t rest = HWY_TARGETS; rest != 0; rest &= rest - 1) targets.push_back(rest & -rest);
  return targets;  // Highway gives better targets lower bits
}

}  // namespace

std::vector<SimdTarget> SimdTargets() {
  std::vector<SimdTarget> list;
  const int64_t supported = hwy::SupportedTargets();
  bool found_active = false;
  for (const int64_t target : Generated()) {
    const bool is_supported = (supported & target) != 0;
    list.push_back({hwy::TargetName(target), is_supported, is_supported && !found_active});
    found_active |= is_supported;
  }
  return list;
}

std::string ActiveSimdTarget() {
  for (const SimdTarget& target : SimdTargets()) {
    if (target.active) return target.name;
  }
  return "SCALAR";
}

bool ForceSimdTarget(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t target : Generated()) {
    const std::string known = hwy::TargetName(target);
    if ((supported & target) == 0 || ::strcasecmp(known.c_str(), std::string(name).c_str()) != 0)
      continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  return false;
}

}  // namespace kv
