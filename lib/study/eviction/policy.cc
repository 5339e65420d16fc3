// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/policy.h"

#include "lib/study/eviction/policies/table.h"

namespace kv::eviction {

std::span<const PolicyInfo> Policies() { return kPolicies; }

const PolicyInfo* FindPolicy(std::string_view name) {
  for (const PolicyInfo& policy : kPolicies) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

}  // namespace kv::eviction
