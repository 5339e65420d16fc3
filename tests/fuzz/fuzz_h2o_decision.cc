// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any parameters, lengths and scores: a plan is sorted, disjoint, inside the cache, holds sink and
// recent tokens, and keeps exactly what the budget says.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lib/core/base/bytes.h"
#include "lib/study/eviction/block_choice.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/keep_plan.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckPlan(const kv::eviction::BlockConfig& config, uint64_t n,
               const kv::eviction::BlockChoice& decision, kv::eviction::FloorRule rule) {
  Require(decision.kept + decision.evicted == n);
  Require(decision.budget == kv::eviction::ComputeBlockBudget(config, n));
  Require(decision.plan.empty() == (decision.evicted == 0));
  if (decision.plan.empty()) return;
  Require(kv::IsApplicable(decision.plan, n));
  Require(kv::KeptTokens(decision.plan) == decision.kept);
  Require(decision.kept == std::max(decision.budget.quantised, decision.budget.floor));
  Require(!decision.budget.floor_dominates || rule == kv::eviction::FloorRule::kKeepFloor);
  const auto sink =
      static_cast<uint32_t>(std::min<int64_t>(static_cast<int64_t>(n), config.sink_tokens));
  const auto recent =
      static_cast<uint32_t>(std::min<int64_t>(static_cast<int64_t>(n), config.recent_tokens));
  for (uint32_t t = 0; t < n; ++t) {
    if (t < sink || t >= n - recent) Require(kv::test::Keeps(decision.plan, t));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto take = [&](auto& value) {
    const size_t count = std::min(sizeof(value), size);
    if (count > 0) std::memcpy(&value, data, count);
    data += count;
    size -= count;
  };
  kv::eviction::BlockConfig config;
  int16_t block = 0, sink = 0, recent = 0;
  uint16_t length = 0;
  uint8_t is_static = 0;
  take(block);
  take(sink);
  take(recent);
  take(length);
  take(is_static);
  take(config.target_keep_ratio);
  take(config.target_lossy_ratio);
  config.block_tokens = block;
  config.sink_tokens = sink;
  config.recent_tokens = recent;
  config.target_mode = (is_static & 1) != 0 ? kv::eviction::TargetMode::kStatic
                                            : kv::eviction::TargetMode::kAdaptive;
  config = kv::eviction::Sanitised(config);
  const uint64_t n = length % 4096;
  std::vector<double> scores(kv::CeilDiv(n, static_cast<uint64_t>(config.block_tokens)));
  for (double& score : scores) {
    float value = 0;
    take(value);
    score = static_cast<double>(value);
  }
  for (const auto rule : {kv::eviction::FloorRule::kKeepAll, kv::eviction::FloorRule::kKeepFloor}) {
    CheckPlan(config, n, kv::eviction::ChooseBlocks(config, n, scores, rule), rule);
  }
  ++kv::fuzz::accepted;  // this target refuses no input
  return 0;
}
