// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/advise/candidates.h"
#include "lib/study/advise/effects.h"
#include "lib/study/advise/mixture.h"
#include "lib/study/eviction/quality.h"

namespace kv::advise {

// What a plan has to meet.
struct Limits {
  std::optional<double> loss;  // of the worst run; kOutput: the square of the error
  double share = 1;            // of the whole cache's bytes that may stay, in the worst run
};
bool Meets(const Outcome& outcome, const Limits& limits);

struct Point {
  Choice choice;
  Outcome outcome;
  // The candidate that every unit takes; empty if they differ.
  std::optional<uint32_t> uniform;
};

// What a search found.
struct Found {
  std::vector<Point> uniform;   // one per candidate, by descending share
  std::vector<Point> frontier;  // points that no other one beats in mean share and loss, likewise
  // The smallest plan within the limits, and the smallest of one candidate for all units. Without a
  // limit on the loss: the plan of least loss within the share.
  std::optional<Point> best, best_uniform;
};

// Finds mixtures: each unit takes the option that pays best. The search starts from the whole cache
// and from the best uniform plan. It takes, step by step, the option that costs least predicted
// loss per byte saved, and where the limits end, exchanges options among units as long as that
// lowers the loss at no more bytes. Options that another one of their unit beats in bytes and,
// alone, in loss are left out. The best plan is never worse than the best uniform one. Mixtures may
// cancel in the rows that were measured and not elsewhere: CrossCheck says how far they carry.
Found Search(const Measured& measured, uint32_t candidates, const Limits& limits, ThreadPool& pool);

// A search on all runs but one, and what its best plan costs in the one left out. A single run is
// cut in two halves of its rows.
struct Fold {
  size_t left_out = 0;  // run, or half
  bool found = false;   // whether some plan of the others is within the limits
  double promised = 0;  // worst loss in the runs searched
  double left_out_loss = 0, left_out_share = 0;
  bool holds = false;  // whether the limits are met in the run left out, too
};
struct CrossChecked {
  bool halves = false;
  std::vector<Fold> folds;

  // How many times what was promised a plan costs where it was not chosen: the geometric mean of
  // the folds, in which runs that are harder than others cancel; at least 1.
  double optimism() const;
};
// Searches within `limits`; what is found has to hold `judged`.
CrossChecked CrossCheck(const Measured& measured, uint32_t candidates, const Limits& limits,
                        const Limits& judged, ThreadPool& pool);

struct AdviceRequest {
  CandidateRequest candidates;
  MeasureRequest measure;
  Limits limits;
  std::optional<uint64_t> context;  // the model's full context, in tokens
  std::string model;                // its name, for captions; empty: the snapshot's own
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
