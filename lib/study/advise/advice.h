// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/study/advise/effects.h"
#include "lib/study/advise/plans.h"
#include "lib/study/advise/search.h"
#include "lib/study/eviction/quality.h"

namespace kv::advise {

struct AdviceRequest {
  CandidateRequest candidates;
  MeasureRequest measure;
  Limits limits;
  std::optional<uint64_t> context;  // the model's full context, in tokens
};

// What a plan would hold of a cache of the model's full context, if its shares hold there.
struct AtContext {
  uint64_t tokens = 0;
  double full_bytes = 0, kept_bytes = 0;
};

// A search, and how far what it found is expected to carry.
struct Searched {
  Found found;
  CrossChecked check;
  double optimism = 1;  // as in Advice

  double expected_loss() const { return found.best->outcome.worst_loss() * optimism; }
};
// Tightens the limit on the loss until what the folds show of choosing fits in it, too.
Searched SearchWithMargin(const Measured& measured, uint32_t candidates, const Limits& limits,
                          ThreadPool& pool);

struct Advice {
  std::vector<Candidate> candidates;
  Effects effects;
  Found found;
  CrossChecked check;
  // How much more than in the rows it was chosen on the best plan is expected to cost elsewhere, as
  // its folds show; the limit holds for the loss times this. 1 of a plan of one candidate.
  double optimism = 1;
  // The best plan, and its loss in each run as measured from its plans alone.
  std::vector<std::vector<PlanOfLayer>> plans;  // [run]
  std::vector<Outcome> measured_again;          // [run]
  std::optional<AtContext> at_context;
  std::vector<std::string> warnings, notes;

  const Measured& measured() const { return effects.measured; }
  // The worst loss that is to be expected of the best plan.
  double expected_loss() const { return found.best->outcome.worst_loss() * optimism; }
};

// Searches for the plan that saves most within the limits. The result is the same for any number of
// threads. Throws kUsage if there is nothing to choose from, and as MeasureEffects.
Advice Advise(const Runs& runs, const AdviceRequest& request, ThreadPool& pool,
              Progress* progress = nullptr);

// The loss as it is shown: the error itself instead of its square, or the real KL that is to be
// expected of predicted nats. Limits compare this.
double Shown(LossKind kind, double loss);
double ShownError(LossKind kind, double loss, double standard_error);
// The loss that is shown as this value.
double LossShownAs(LossKind kind, double shown);
// Of the two kinds that are in nats.
const eviction::Calibration& CalibrationOf(LossKind kind);
// Units of a choice that lose the first token in some run.
uint32_t UnitsWithoutFirst(const Measured& measured, const Choice& choice);

}  // namespace kv::advise
