// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
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

// One prompt: a cache, what the model looked at, and where decoding begins. Snapshot and trace must
// match (RequireMatch) and outlive the object.
class RunOf {
 public:
  RunOf(std::string name, const Snapshot& snapshot, const AttentionTrace& trace, uint64_t prompt,
        ThreadPool& pool);
  RunOf(const RunOf&) = delete;
  RunOf& operator=(const RunOf&) = delete;

  const std::string& name() const { return name_; }
  const AttentionTrace& trace() const { return trace_; }
  const Snapshot& snapshot() const { return snapshot_; }
  uint64_t prompt() const { return prompt_; }
  uint64_t end() const { return trace_.end_position(); }
  const std::vector<LayerAttention>& layers() const { return layers_; }  // those with rows
  std::vector<uint32_t> missing_layers() const;
  // Of all layers, K and V; layers with sliding windows hold no more than these at the end.
  uint64_t bytes_per_token() const;
  // Of one kv head of layers()[i].
  double head_bytes_per_token(size_t i) const;
  eviction::LayerPlace PlaceOf(size_t i) const;

 private:
  std::string name_;
  const Snapshot& snapshot_;  // as stored: what bytes are counted by
  Snapshot values_;           // as the model computed it
  const AttentionTrace& trace_;
  uint64_t prompt_;
  std::vector<LayerAttention> layers_;
};
using Runs = std::vector<std::unique_ptr<RunOf>>;

// K and V of one token.
uint64_t TokenBytes(const LayerKv& layer);

// Throws kTraceMismatch unless both runs are of one model: the same layers and heads.
void RequireLike(const RunOf& run, const RunOf& first);

// A policy with its parameters, on a budget.
struct Candidate {
  std::string policy;
  eviction::KeepBudget budget;
  eviction::BlockConfig config;     // of block, sanitised
  eviction::PaperParameters paper;  // of the others
  std::string parameters;           // those that tell it from its like: "sinks 4"

  std::string Text() const;       // "streaming 0.25, sinks 4"
  std::string ShortText() const;  // "streaming 0.25"
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

// Replays candidates in one layer of a run; returns plans in their order.
std::vector<eviction::LayerPlan> PlanCandidates(const RunOf& run, size_t layer,
                                                std::span<const Candidate* const> candidates,
                                                uint64_t seed, ThreadPool& pool);

// The plan of one layer. Its kv heads may evict at moments of their own.
struct PlanOfLayer {
  eviction::LayerPlan plan;
  std::vector<std::vector<eviction::Eviction>> events;  // [unit of the plan]
};

// Replays one run on the candidates of a choice, which is one of the units of `measured`.
std::vector<PlanOfLayer> PlansOf(const RunOf& run, const std::vector<Candidate>& candidates,
                                 const Measured& measured, const Choice& choice, uint64_t seed,
                                 ThreadPool& pool);

// Visits the events of plans in the order of time, then of layers and heads.
void ForEachEvent(const std::vector<PlanOfLayer>& plans,
                  const std::function<void(const eviction::PlanEvent&)>& visit);

}  // namespace kv::advise
