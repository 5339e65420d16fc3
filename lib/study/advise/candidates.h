// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/study/eviction/budget.h"

namespace kv::advise {

// A policy with its parameters, on a budget.
struct Candidate {
  std::string policy;
  eviction::KeepBudget budget;
  eviction::BlockConfig config;     // of block, sanitised
  eviction::PaperParameters paper;  // of the others
  std::string parameters;           // those that tell it from its like: "sinks 4"

  std::string Text() const;  // "streaming 0.25, sinks 4"
  eviction::PolicyOptions Options(uint64_t seed) const;
};

// The policies that are tried if none are asked for.
std::vector<std::string> UsualPolicies();

struct CandidateRequest {
  std::vector<std::string> policies = UsualPolicies();
  std::vector<eviction::KeepBudget> budgets;
  std::vector<uint64_t> sinks = {4, 16};     // first tokens that streaming keeps
  std::vector<double> recent = {0.25, 0.5};  // share of a budget, for block and h2o
  std::vector<uint64_t> windows = {16, 64};  // rows by which snapkv and pyramid weigh
  uint64_t seed = 0;                         // of policy random
};

// The shares that are tried if none are asked for.
std::vector<eviction::KeepBudget> UsualBudgets();

// Makes every policy on every budget, with each of the parameters that it has. `shortest` is the
// length of the shortest run: parameters of block that nobody chose follow the budget there. What
// could not hold its own sinks and recent tokens is left out, and so are budgets that hold all.
std::vector<Candidate> MakeCandidates(const CandidateRequest& request, uint64_t shortest);

}  // namespace kv::advise
