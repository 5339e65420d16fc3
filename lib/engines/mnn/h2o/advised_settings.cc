// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/advised_settings.h"

#include <algorithm>

#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/study/eviction/replay.h"

namespace kv::mnn::h2o {
namespace {

// The figures of one run, added to those of the others.
void Add(const advise::Outcome& run, advise::Outcome& all) {
  const auto append = [](const std::vector<double>& from, std::vector<double>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(run.loss, all.loss);
  append(run.standard_error, all.standard_error);
  append(run.kept_share, all.kept_share);
  append(run.held_share, all.held_share);
}

// Number of settings replayed together, because they share attention that all of them change.
constexpr size_t kTriedTogether = 4;

AdvisedSettings ToSettings(const advise::Candidate& candidate, uint64_t shortest_prompt) {
  AdvisedSettings settings;
  settings.candidate = &candidate;
  settings.config = candidate.config;
  settings.config.trigger_min_tokens = static_cast<int64_t>(shortest_prompt);
  return settings;
}

void Try(const advise::Runs& runs, const advise::AdviceRequest& request,
         std::span<AdvisedSettings> together, ThreadPool& pool) {
  for (const auto& run : runs) {
    std::vector<advise::PlansOfRun> plans;
    for (AdvisedSettings& settings : together) {
      ReplayRequest replay;
      replay.engine = &kMnn;
      replay.config = settings.config;
      replay.prompt_tokens = run->prompt();
      replay.measure_quality = false;
      const ReplayResult result = eviction::Replay(run->snapshot(), run->trace(), replay, pool);
      plans.push_back(result.runs.front().plans);
      if (!settings.compounds) settings.compounds = eviction::WhereTargetsEnd(result);
    }
    const auto outcomes = advise::MeasurePlans(*run, plans, request.measure, pool);
    for (size_t i = 0; i < together.size(); ++i) Add(outcomes[i], together[i].outcome);
  }
}

}  // namespace

std::optional<AdvisedSettings> AdviseSettings(const advise::Runs& runs,
                                              const advise::AdviceRequest& request,
                                              const advise::Advice& advice, ThreadPool& pool) {
  uint64_t shortest_prompt = UINT64_MAX;
  for (const auto& run : runs) shortest_prompt = std::min(shortest_prompt, run->prompt());
  // Points by descending share: with a limit on the loss the last ones save most.
  std::vector<const advise::Point*> order;
  for (const advise::Point& point : advice.found.uniform) order.push_back(&point);
  if (request.limits.loss) std::reverse(order.begin(), order.end());
  std::vector<AdvisedSettings> all;
  for (const advise::Point* point : order) {
    const advise::Candidate& candidate = advice.candidates[*point->uniform];
    if (eviction::FindPolicy(candidate.policy)->tuned_by != eviction::Tuning::kBlocks ||
        candidate.budget.tokens)
      continue;
    all.push_back(ToSettings(candidate, shortest_prompt));
  }
  for (size_t begin = 0; begin < all.size(); begin += kTriedTogether) {
    const auto together =
        std::span(all).subspan(begin, std::min(kTriedTogether, all.size() - begin));
    Try(runs, request, together, pool);
    for (AdvisedSettings& settings : together) {
      if (advise::Meets(settings.outcome, request.limits)) return std::move(settings);
    }
  }
  return std::nullopt;
}

}  // namespace kv::mnn::h2o
