// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv::advise {
namespace {

Candidate OnBudget(const std::string& policy, const eviction::KeepBudget& budget) {
  Candidate candidate;
  candidate.policy = policy;
  candidate.budget = budget;
  candidate.paper.grow = false;  // a part's share of the cache is its budget at every step
  return candidate;
}

void AddBlock(const CandidateRequest& request, const std::string& policy,
              const eviction::KeepBudget& budget, uint64_t shortest, std::vector<Candidate>& out) {
  const uint64_t least = budget.At(shortest);
  for (const double recent : request.recent) {
    Candidate candidate = OnBudget(policy, budget);
    candidate.config.recent_tokens =
        static_cast<int64_t>(std::floor(recent * static_cast<double>(least)));
    std::vector<std::string> followed;
    candidate.config = eviction::FollowTrace(candidate.config, {"recent_tokens"}, least, followed);
    candidate.config.target_mode = eviction::TargetMode::kAdaptive;
    candidate.config.target_lossy_ratio =
        budget.tokens ? NAN : static_cast<float>(1 / budget.share);
    if (eviction::BlockFloor(candidate.config) > least) continue;
    candidate.parameters =
        fmt::format("blocks of {}, sinks {}, recent {}", candidate.config.block_tokens,
                    candidate.config.sink_tokens, candidate.config.recent_tokens);
    out.push_back(candidate);
  }
}

void AddPaper(const CandidateRequest& request, const eviction::PolicyInfo& policy,
              const eviction::KeepBudget& budget, uint64_t shortest, std::vector<Candidate>& out) {
  const uint64_t least = budget.At(shortest);
  Candidate candidate = OnBudget(std::string(policy.name), budget);
  if (policy.tuned_by == eviction::Tuning::kSinks) {
    for (const uint64_t sinks : request.sinks) {
      if (sinks >= least) continue;
      candidate.paper.sinks = sinks;
      candidate.parameters = fmt::format("sinks {}", sinks);
      out.push_back(candidate);
    }
  } else if (policy.tuned_by == eviction::Tuning::kHeavyShare) {
    for (const double recent : request.recent) {
      candidate.paper.heavy_share = 1 - recent;
      candidate.parameters = fmt::format("recent {:.4g} of it", recent);
      out.push_back(candidate);
    }
  } else if (policy.tuned_by == eviction::Tuning::kWindow) {
    for (const uint64_t window : request.windows) {
      if (window >= least) continue;  // it would be the policy window
      candidate.paper.window = window;
      candidate.parameters = fmt::format("window {}", window);
      out.push_back(candidate);
    }
  } else {
    out.push_back(candidate);
  }
}

}  // namespace

std::string Candidate::Text() const {
  return parameters.empty() ? fmt::format("{} {}", policy, budget.Text())
                            : fmt::format("{} {}, {}", policy, budget.Text(), parameters);
}

eviction::PolicyOptions Candidate::Options(uint64_t seed) const {
  return {config, paper, WeightRule::kSoftmax, eviction::Granularity::kLayer, seed, true};
}

std::vector<std::string> UsualPolicies() {
  std::vector<std::string> names;
  for (const eviction::PolicyInfo& policy : eviction::Policies()) {
    if (policy.is_usual) names.emplace_back(policy.name);
  }
  return names;
}

std::vector<eviction::KeepBudget> UsualBudgets() {
  std::vector<eviction::KeepBudget> budgets;
  for (const double share : {0.75, 0.5, 0.35, 0.25, 0.18, 0.125}) {
    budgets.push_back({std::nullopt, share, false});
  }
  return budgets;
}

std::vector<Candidate> MakeCandidates(const CandidateRequest& request, uint64_t shortest) {
  std::vector<Candidate> candidates;
  for (const std::string& name : request.policies) {
    const eviction::PolicyInfo& policy = *eviction::FindPolicy(name);
    for (const eviction::KeepBudget& budget : request.budgets) {
      if (budget.At(shortest) >= shortest) continue;
      if (policy.tuned_by == eviction::Tuning::kBlocks) {
        AddBlock(request, name, budget, shortest, candidates);
      } else if (policy.spending != eviction::Spending::kNone) {
        AddPaper(request, policy, budget, shortest, candidates);
      }
    }
  }
  return candidates;
}

}  // namespace kv::advise
