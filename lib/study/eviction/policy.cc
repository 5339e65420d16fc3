// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/policy.h"

namespace kv::eviction {
namespace {

constexpr PolicyInfo kPolicies[] = {
    {"block", "the engine's rule: sink and recent blocks, then blocks by EMA score", true, false},
    {"full", "nothing is evicted", false, false},
    {"random", "seeded choice, per kv head", false, false},
    {"window", "the most recent tokens", false, false},
    {"streaming", "4 sinks and the most recent tokens (StreamingLLM)", false, false},
    {"h2o", "half recent, half by attention summed since the prompt, per kv head (H2O)", true,
     false},
    {"tova", "attention of the last row, mean over all heads (TOVA)", true, false},
    {"snapkv", "attention of the last 64 rows, pooled over 5 keys, per kv head (SnapKV)", true,
     true},
    {"pyramid", "as snapkv, with budgets falling from the first layer to the last", true, true},
    {"knorm", "small key norms stay, per kv head", false, false},
    {"keydiff", "keys unlike the mean key stay, per kv head (KeyDiff)", false, false},
    {"oracle-mass", "attention of the rows to come, per kv head: what no policy can know", true,
     false},
};

}  // namespace

std::span<const PolicyInfo> Policies() { return kPolicies; }

const PolicyInfo* FindPolicy(std::string_view name) {
  for (const PolicyInfo& policy : kPolicies) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

}  // namespace kv::eviction
