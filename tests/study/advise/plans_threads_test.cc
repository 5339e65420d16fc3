// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/study/advise/candidates.h"
#include "lib/study/eviction/rule.h"
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

// Keys of 1,024 values are multiplied by the BLAS, short ones row by row.
TEST_CASE("policies that see one row in eight evict only there, on any number of threads",
          "[advise][threads]") {
  constexpr uint64_t kStride = 8;
  const std::vector<Candidate> candidates = ManyCandidates();
  for (const uint32_t dim : {16u, 1024u}) {
    const auto made = test::MakeAttentionCase({.dim = dim}, 11);
    ThreadPool alone(1), five(5);
    const AdviseRun run("run", made->snapshot, made->trace, kPrompt, alone);
    std::vector<eviction::PolicyOptions> options;
    std::vector<eviction::LayerSchedule> schedules;
    std::vector<eviction::PlanJob> jobs;
    for (const Candidate& candidate : candidates) {
      options.push_back(candidate.Options(kSeed));
      schedules.push_back(eviction::BudgetSchedule(
          *eviction::FindPolicy(candidate.policy), options.back(), candidate.budget,
          {kPrompt - 1, run.end(), kStride}, {true, 0, 2}));
    }
    for (size_t i = 0; i < candidates.size(); ++i)
      jobs.push_back({eviction::FindPolicy(candidates[i].policy), &options[i], &schedules[i]});
    const auto single = eviction::PlanLayer(run.layers()[1], kPrompt, jobs, alone, kStride);
    const auto together = eviction::PlanLayer(run.layers()[1], kPrompt, jobs, five, kStride);
    for (size_t i = 0; i < jobs.size(); ++i) {
      INFO(candidates[i].Text() << " with keys of " << dim);
      CHECK(single[i].events == schedules[i].evictions);
      CHECK(LastSeen(together[i]) == LastSeen(single[i]));
      for (uint32_t unit = 0; unit < single[i].units; ++unit) {
        for (const uint32_t last : single[i].last_seen(unit)) {
          CHECK((last == eviction::LayerPlan::kStays || (run.end() - 1 - last) % kStride == 0));
        }
      }
    }
  }
}

}  // namespace kv::advise::plans_threads_test
