// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/core/base/error.h"

namespace kv::advise {
namespace {

// The share of effects that count as independent while a plan is searched for. On a run of 256 rows
// with one sampled token each, plans of 30 layers found at 0, 0.75 and 1 cost 4.2, 2.6 and 1.7
// times as much in the other half of the rows as where they were chosen.
constexpr double kIndependent = 1;
constexpr double kAlike = 1e-9;
constexpr int kMostMargins = 4;
constexpr double kTighter = 0.8;  // at least so much from round to round

AtContext HoldsAt(const Runs& runs, const Advice& advice, const Choice& choice, uint64_t tokens) {
  const RunOf& run = *runs.front();
  AtContext at{tokens, static_cast<double>(tokens * run.bytes_per_token()), 0};
  const auto all = static_cast<double>(tokens);
  at.kept_bytes = at.full_bytes;
  size_t unit = 0;
  for (size_t layer = 0; layer < run.layers().size(); ++layer) {
    const size_t first = unit;
    while (unit < choice.size() &&
           advice.measured().units[unit].layer == run.layers()[layer].layer()) {
      ++unit;
    }
    const double heads = static_cast<double>(run.layers()[layer].kv_heads()) /
                         static_cast<double>(std::max<size_t>(1, unit - first));
    for (size_t u = first; u < unit; ++u) {
      const uint32_t c = advice.measured().units[u].options[choice[u]].candidate;
      if (c >= advice.candidates.size()) continue;
      const auto kept = static_cast<double>(advice.candidates[c].budget.At(tokens));
      at.kept_bytes -= (all - kept) * heads * run.head_bytes_per_token(layer);
    }
  }
  return at;
}

void NoteSinks(const Advice& advice, std::vector<std::string>& warnings) {
  if (advice.found.best) {
    const Choice& choice = advice.found.best->choice;
    std::set<std::string> policies;
    for (size_t u = 0; u < choice.size(); ++u) {
      const Option& option = advice.measured().units[u].options[choice[u]];
      if (option.drops_first > 0) policies.insert(advice.candidates[option.candidate].policy);
    }
    if (!policies.empty()) {
      warnings.push_back(fmt::format(
          "the plan drops the first token in {} of {} parts of the model (by {}): where that is an "
          "attention sink, other prompts may lose far more than these",
          UnitsWithoutFirst(advice.measured(), choice), choice.size(), fmt::join(policies, ", ")));
    }
  }
}

void NoteRows(const Runs& runs, const Advice& advice, std::vector<std::string>& warnings) {
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto missing = runs[r]->missing_layers();
    if (!missing.empty()) {
      warnings.push_back(fmt::format("{}: the trace has no rows of layers {}: they keep everything",
                                     runs[r]->name(), fmt::join(missing, ", ")));
    }
    if (advice.effects.undefined_rows[r] > 0) {
      warnings.push_back(fmt::format(
          "{}: {} of {} measured rows are undefined, by NaN or Inf, and left out", runs[r]->name(),
          advice.effects.undefined_rows[r], advice.effects.rows[r].positions.size()));
    }
    if (runs[r]->trace().q_start > 0) {
      warnings.push_back(fmt::format(
          "{}: the trace has no queries of positions 0 to {}: rules that weigh the prompt by its "
          "own attention (h2o, snapkv, pyramid, block) see only what comes later",
          runs[r]->name(), std::min(runs[r]->trace().q_start, runs[r]->prompt()) - 1));
    }
  }
}

void NoteCheck(const Advice& advice, std::vector<std::string>& warnings) {
  size_t held = 0, found = 0;
  for (const Fold& fold : advice.check.folds) {
    found += fold.found;
    held += fold.holds;
  }
  if (held < found) {
    warnings.push_back(fmt::format("chosen without it, a plan breaks the limits in {} of {} {}",
                                   found - held, found,
                                   advice.check.halves ? "halves of the rows" : "prompts"));
  }
  if (advice.check.halves) {
    warnings.push_back(
        "advice from one prompt: how far it carries to others is unknown; give several runs");
  }
}

// The smallest uniform plan within the limits; without a limit on the loss that of least loss.
std::optional<Point> BestUniform(const Found& found, const Limits& limits) {
  std::optional<Point> best;
  for (const Point& point : found.uniform) {
    if (!Meets(point.outcome, limits)) continue;
    if (!best) {
      best = point;
      continue;
    }
    const Outcome &mine = point.outcome, &other = best->outcome;
    const bool smaller = mine.mean_share() < other.mean_share() - kAlike;
    const bool as_small = mine.mean_share() <= other.mean_share() + kAlike;
    const bool loses_less = mine.mean_loss() < other.mean_loss();
    if (limits.loss ? smaller || (as_small && loses_less) : loses_less) best = point;
  }
  return best;
}

}  // namespace

const eviction::Calibration& CalibrationOf(LossKind kind) {
  KV_ASSERT(kind != LossKind::kOutput);
  return kind == LossKind::kFisher ? eviction::kGradientCalibration
                                   : eviction::kSensitivityCalibration;
}

double Shown(LossKind kind, double loss) {
  return kind == LossKind::kOutput ? std::sqrt(std::max(0.0, loss))
                                   : loss / CalibrationOf(kind).median;
}

double ShownError(LossKind kind, double loss, double standard_error) {
  if (kind != LossKind::kOutput) return standard_error / CalibrationOf(kind).median;
  const double root = Shown(kind, loss);
  return root > 0 ? standard_error / (2 * root) : 0;
}

double LossShownAs(LossKind kind, double shown) {
  return kind == LossKind::kOutput ? shown * shown : shown * CalibrationOf(kind).median;
}

uint32_t UnitsWithoutFirst(const Measured& measured, const Choice& choice) {
  uint32_t count = 0;
  for (size_t u = 0; u < choice.size(); ++u) {
    count += measured.units[u].options[choice[u]].drops_first > 0;
  }
  return count;
}

// What is chosen among many mixtures looks better where it was chosen than elsewhere. The limit is
// tightened until what the folds show of that fits in it.
Searched SearchWithMargin(const Measured& measured, uint32_t candidates, const Limits& limits,
                          ThreadPool& pool) {
  Searched searched;
  Limits tight = limits;
  for (int round = 0; round < kMostMargins; ++round) {
    searched.found = Search(measured, candidates, tight, pool);
    searched.check = CrossCheck(measured, candidates, tight, limits, pool);
    searched.optimism = searched.check.optimism();
    if (!searched.found.best || !limits.loss || searched.expected_loss() <= *limits.loss) break;
    tight.loss = std::min(*limits.loss / searched.optimism, *tight.loss * kTighter);
  }
  Found& found = searched.found;
  found.best_uniform = BestUniform(found, limits);
  if (!found.best || !found.best_uniform || !limits.loss) return searched;
  const bool breaks = searched.expected_loss() > *limits.loss;
  if (breaks || found.best_uniform->outcome.mean_share() < found.best->outcome.mean_share()) {
    found.best = found.best_uniform;
    searched.optimism = 1;
  }
  return searched;
}

Advice Advise(const Runs& runs, const AdviceRequest& request, ThreadPool& pool,
              Progress* progress) {
  KV_ASSERT(!runs.empty());
  Advice advice;
  uint64_t shortest = UINT64_MAX;
  for (const auto& run : runs) shortest = std::min(shortest, run->end());
  advice.candidates = MakeCandidates(request.candidates, shortest);
  if (advice.candidates.empty() || runs.front()->layers().empty()) {
    throw Error(Finding::kUsage,
                fmt::format("no policy can hold a budget within {} tokens", shortest))
        .Hint("give a smaller --budget, or fewer --streaming-sink tokens");
  }
  advice.effects = MeasureEffects(runs, advice.candidates, request.measure, pool, progress);
  const auto count = static_cast<uint32_t>(advice.candidates.size());
  if (request.measure.kind == LossKind::kFisher) advice.effects.measured.independent = kIndependent;
  Searched searched = SearchWithMargin(advice.measured(), count, request.limits, pool);
  advice.found = std::move(searched.found);
  advice.check = std::move(searched.check);
  advice.optimism = searched.optimism;
  if (advice.found.best) {
    const Choice& choice = advice.found.best->choice;
    for (const auto& run : runs) {
      advice.plans.push_back(
          PlansOf(*run, advice.candidates, advice.measured(), choice, request.measure.seed, pool));
      std::vector<eviction::LayerPlan> plans;
      for (const PlanOfLayer& layer : advice.plans.back()) plans.push_back(layer.plan);
      advice.measured_again.push_back(MeasurePlans(*run, {&plans, 1}, request.measure, pool)[0]);
    }
    if (request.context) {
      advice.at_context = HoldsAt(runs, advice, choice, *request.context);
    }
  }
  NoteRows(runs, advice, advice.warnings);
  NoteSinks(advice, advice.warnings);
  NoteCheck(advice, advice.warnings);
  advice.notes.push_back(
      "ratios are of the K and V of all layers at the end, whole cache over kept; budgets are of "
      "all tokens seen, so nothing compounds");
  advice.notes.push_back("open loop: hidden states of later layers do not react to what is gone");
  std::string windows = RemarkOnWindows(runs.front()->trace(), runs.front()->end());
  if (!windows.empty()) advice.notes.push_back(std::move(windows));
  return advice;
}

}  // namespace kv::advise
