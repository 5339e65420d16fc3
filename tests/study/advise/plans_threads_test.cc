// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/study/advise/candidates.h"
#include "tests/support/attention_case.h"

namespace kv::advise::plans_threads_test {
namespace {

constexpr uint64_t kPrompt = 64, kSeed = 7;

// Rules with different sums over the prompt, and budgets with different first evictions.
std::vector<Candidate> ManyCandidates() {
  CandidateRequest request;
  request.policies = {"block",  "window", "streaming", "h2o",     "tova",
                      "snapkv", "knorm",  "keydiff",   "pyramid", "oracle-mass"};
  request.budgets = {{std::nullopt, 0.5, false}, {std::nullopt, 0.2, false}, {96, 0, false}};
  request.windows = {8};
  return MakeCandidates(request, 160);
}

// The position after which each token is evicted, for each unit.
std::vector<uint32_t> LastSeen(const eviction::LayerPlan& plan) {
  std::vector<uint32_t> seen{plan.units};
  for (uint32_t unit = 0; unit < plan.units; ++unit) {
    for (uint64_t position = 0; position < 160; ++position) {
      seen.push_back(plan.last_seen(unit, position));
    }
  }
  return seen;
}

}  // namespace

TEST_CASE("plans made side by side are those made one by one", "[advise][threads]") {
  const auto made = test::MakeAttentionCase({}, 11);
  const std::vector<Candidate> candidates = ManyCandidates();
  REQUIRE(candidates.size() > 20);
  std::vector<const Candidate*> all;
  for (const Candidate& candidate : candidates) all.push_back(&candidate);
  ThreadPool alone(1);
  const AdviseRun run("run", made->snapshot, made->trace, kPrompt, alone);
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const auto together = PlanCandidates(run, 1, all, kSeed, pool);
    for (size_t i = 0; i < all.size(); ++i) {
      INFO(candidates[i].Text() << " on " << threads << " threads");
      const auto single = PlanCandidates(run, 1, {&all[i], 1}, kSeed, alone);
      CHECK(LastSeen(together[i]) == LastSeen(single.front()));
    }
  }
}

}  // namespace kv::advise::plans_threads_test
