// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/advised_settings.h"

#include <algorithm>

#include "lib/engines/mnn/h2o/replay.h"
#include "lib/engines/mnn/h2o/replay_notes.h"

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

AdvisedSettings Try(const advise::Runs& runs, const advise::AdviceRequest& request,
                    const advise::Candidate& candidate, uint64_t shortest_prompt,
                    ThreadPool& pool) {
  AdvisedSettings settings;
  settings.candidate = &candidate;
  settings.config = candidate.config;
  settings.config.trigger_min_tokens = static_cast<int64_t>(shortest_prompt);
  for (const auto& run : runs) {
    ReplayRequest replay;
    replay.engine = Engine::kMnn;
    replay.config = settings.config;
    replay.prompt_tokens = run->prompt();
    replay.measure_quality = false;
    const ReplayResult result = Replay(run->snapshot(), run->trace(), replay, pool);
    Add(advise::MeasurePlans(*run, result.runs.front().plans, request.measure, pool),
        settings.outcome);
    if (!settings.compounds) settings.compounds = WhereTargetsEnd(result);
  }
  return settings;
}

}  // namespace

std::optional<AdvisedSettings> AdviseSettings(const advise::Runs& runs,
                                              const advise::AdviceRequest& request,
                                              const advise::Advice& advice, ThreadPool& pool) {
  uint64_t shortest_prompt = UINT64_MAX;
  for (const auto& run : runs) shortest_prompt = std::min(shortest_prompt, run->prompt());
  // By descending share: with a limit on the loss the last ones save most.
  std::vector<const advise::Point*> order;
  for (const advise::Point& point : advice.found.uniform) order.push_back(&point);
  if (request.limits.loss) std::reverse(order.begin(), order.end());
  for (const advise::Point* point : order) {
    const advise::Candidate& candidate = advice.candidates[*point->uniform];
    if (candidate.policy != "block" || candidate.budget.tokens) continue;
    AdvisedSettings settings = Try(runs, request, candidate, shortest_prompt, pool);
    if (advise::Meets(settings.outcome, request.limits)) return settings;
  }
  return std::nullopt;
}

}  // namespace kv::mnn::h2o
