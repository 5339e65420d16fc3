// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The eviction candidates of advice (a policy on a budget), and the plans that they make in a run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/advise/mixture.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/budget.h"
#include "lib/study/eviction/policy.h"
#include "lib/study/eviction/report.h"

namespace kv::advise {

// One prompt: a cache, the queries of the model, and the position where decoding begins. Snapshot
// and trace must match (RequireMatch) and outlive the object.
class AdviseRun {
 public:
  AdviseRun(std::string name, const Snapshot& snapshot, const AttentionTrace& trace,
            uint64_t prompt, ThreadPool& pool);
  AdviseRun(const AdviseRun&) = delete;
  AdviseRun& operator=(const AdviseRun&) = delete;

  const std::string& name() const { return name_; }
  const AttentionTrace& trace() const { return trace_; }
  const Snapshot& snapshot() const { return snapshot_; }
  uint64_t prompt() const { return prompt_; }
  uint64_t end() const { return trace_.end_position(); }
  // layers that have query rows
  const std::vector<LayerAttention>& layers() const { return layers_; }
  std::vector<uint32_t> missing_layers() const;
  // Returns the bytes of K and V of one token in all layers. A layer with a sliding window holds no
  // more than its window at the end.
  uint64_t bytes_per_token() const;
  // Returns the bytes of one token in one kv head of layers()[i].
  double head_bytes_per_token(size_t i) const;
  eviction::LayerPlace FindPlace(size_t i) const;
  // Returns the number of decode rows between two rows at which policies look and evict: above 1 in
  // a run of more than kMostSteps decode rows, whose replay would otherwise take time quadratic in
  // its tokens.
  uint64_t stride() const;
  static constexpr uint64_t kMostSteps = 512;

 private:
  std::string name_;
  const Snapshot& snapshot_;  // as stored; its bytes are counted
  Snapshot values_;           // as the model computed it
  const AttentionTrace& trace_;
  uint64_t prompt_;
  std::vector<LayerAttention> layers_;
};
using Runs = std::vector<std::unique_ptr<AdviseRun>>;

// Throws kTraceMismatch unless both runs have the same layers and heads.
void RequireLike(const AdviseRun& run, const AdviseRun& first);

// A policy with its parameters and budget.
struct Candidate {
  std::string policy;
  eviction::KeepBudget budget;
  eviction::BlockConfig config;     // config of policy block, sanitised
  eviction::PaperParameters paper;  // parameters of the other policies
  std::string parameters;  // parameters that distinguish it from similar candidates: "sinks 4"

  std::string Text() const;       // "streaming 0.25, sinks 4"
  std::string ShortText() const;  // "streaming 0.25"
  eviction::PolicyOptions Options(uint64_t seed) const;
};

// Returns the policies that are tried by default.
std::vector<std::string> UsualPolicies();

struct CandidateRequest {
  std::vector<std::string> policies = UsualPolicies();
  std::vector<eviction::KeepBudget> budgets;
  std::vector<uint64_t> sinks = {4, 16};     // first tokens that streaming keeps
  std::vector<double> recent = {0.25, 0.5};  // share of a budget, for block and h2o
  std::vector<uint64_t> windows = {16, 64};  // query rows by which snapkv and pyramid weigh keys
  uint64_t seed = 0;                         // seed of policy random
};

// Returns the budgets that are tried by default.
std::vector<eviction::KeepBudget> UsualBudgets();

// Makes every policy on every budget, with each of the parameters that it has. `shortest` is the
// length of the shortest run; parameters of block that the user did not choose follow the budget at
// that length. Leaves out candidates that could not hold their own sinks and recent tokens, and
// budgets that hold everything.
std::vector<Candidate> MakeCandidates(const CandidateRequest& request, uint64_t shortest);

// Replays candidates in one layer of a run; returns plans in their order.
std::vector<eviction::LayerPlan> PlanCandidates(const AdviseRun& run, size_t layer,
                                                std::span<const Candidate* const> candidates,
                                                uint64_t seed, ThreadPool& pool);

// The plan of one layer, whose kv heads may evict at different steps.
struct PlanOfLayer {
  eviction::LayerPlan plan;
  std::vector<std::vector<eviction::Eviction>> events;  // [unit of the plan]
};

// Replays one run with the candidates of a choice; `measured` tells what its units are.
std::vector<PlanOfLayer> MakePlans(const AdviseRun& run, const std::vector<Candidate>& candidates,
                                   const Measured& measured, const Choice& choice, uint64_t seed,
                                   ThreadPool& pool);

// Visits the events of plans in the order of time, then of layers and heads.
void ForEachEvent(const std::vector<PlanOfLayer>& plans,
                  const std::function<void(const eviction::PlanEvent&)>& visit);

}  // namespace kv::advise
