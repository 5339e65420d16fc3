// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Measures what each candidate does to each layer or kv head of each run, and searches for the best
// plan among them.
#pragma once  // implemented by advice.cc, effects.cc

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/study/advise/candidates.h"
#include "lib/study/advise/mixture.h"
#include "lib/study/eviction/quality.h"

namespace kv::advise {

struct MeasureRequest {
  LossKind kind = LossKind::kOutput;
  eviction::Granularity units = eviction::Granularity::kKvHead;
  std::map<uint32_t, double> weights;  // [layer], for kSensitivity
  uint64_t rows = 256;                 // maximum number of measured rows, drawn by `seed`; 0: all
  uint64_t seed = 0;
};

// The measured effects, and what was left out of them.
struct Effects {
  Measured measured;
  std::vector<eviction::MeasuredRows> rows;  // [run]
  std::vector<uint64_t> undefined_rows;      // [run]: rows left out because they are undefined
};

// One way to change a layer: the outputs of its query heads, the tokens it holds, and their bytes.
struct Alternative {
  std::vector<AttentionRows> heads;  // error2, norm2, changed_norm2, dot and log_p_change
  eviction::LayerPlan plan;          // the plan that was replayed; by default it keeps everything
  double bytes = 1;  // bytes of the tokens held, as a share of their bytes in the snapshot
};
using AlternativesOf = std::function<std::vector<Alternative>(const AdviseRun& run, size_t layer,
                                                              const eviction::MeasuredRows& rows)>;
// Measures `count` alternatives in every layer of every run. Alternative i becomes candidate i of
// the effects. Throws what MeasureEffects throws.
Effects MeasureAlternatives(std::span<const AdviseRun* const> runs, uint32_t count,
                            const AlternativesOf& alternatives_of, const MeasureRequest& request,
                            Progress* progress);

// Replays every candidate in every layer of every run and measures its effect. Throws
// kTraceMismatch if the runs differ in geometry, kUsage if the trace lacks what the loss needs,
// kBadField if no row of a run is defined.
Effects MeasureEffects(const Runs& runs, const std::vector<Candidate>& candidates,
                       const MeasureRequest& request, ThreadPool& pool,
                       Progress* progress = nullptr);

// One plan per layer of a run.
using PlansOfRun = std::vector<eviction::LayerPlan>;

// Measures the loss of any plans, as MeasureEffects measures that of candidates. Several plans cost
// little more than one.
std::vector<Outcome> MeasurePlans(const AdviseRun& run, std::span<const PlansOfRun> alternatives,
                                  const MeasureRequest& request, ThreadPool& pool);

// The search for an eviction plan within limits on loss and size, and how well its result holds for
// other runs.

// Limits that a plan has to meet.
struct Limits {
  std::optional<double> loss;  // loss of the worst run; for kOutput the square of the error
  double share = 1;            // largest share of the whole cache's bytes, in the worst run
};
bool Meets(const Outcome& outcome, const Limits& limits);

struct Point {
  Choice choice;
  Outcome outcome;
  // The candidate that every unit takes; empty if they differ.
  std::optional<uint32_t> uniform;
};

// Result of a search.
struct Found {
  std::vector<Point> uniform;  // one point per candidate, by descending share
  // points that no other point beats in mean share and loss, by descending share
  std::vector<Point> frontier;
  // The smallest plan within the limits, and the smallest plan of one candidate for all units.
  // Without a limit on the loss both are the plans of least loss within the share.
  std::optional<Point> best, best_uniform;
};

// Finds mixtures: each unit takes the option that pays best. The search starts from the whole cache
// and from the best uniform plan. It takes, step by step, the option that costs least predicted
// loss per byte saved. At the limits it exchanges options among units as long as that lowers the
// loss at no more bytes. An option is left out if another option of its unit has fewer bytes and,
// measured alone, less loss. The best plan is never worse than the best uniform one. Effects may
// cancel in the measured rows and not elsewhere; CrossCheck measures how plans hold elsewhere.
Found Search(const Measured& measured, uint32_t candidates, const Limits& limits, ThreadPool& pool);

// A search on all runs but one, and what its best plan loses in the run left out. A single run is
// cut into two halves of its rows.
struct Fold {
  size_t left_out = 0;  // index of the run, or of the half
  bool found = false;   // true if a plan meets the limits in the other runs
  double promised = 0;  // worst loss in the runs searched
  double left_out_loss = 0, left_out_share = 0;
  bool holds = false;  // true if the plan meets the limits in the run left out, too
};
struct CrossChecked {
  bool halves = false;
  std::vector<Fold> folds;

  // Returns the factor by which a plan loses more on data that it was not chosen on: the geometric
  // mean over the folds, in which harder and easier runs cancel; at least 1.
  double optimism() const;
};
// Searches within `limits`, and judges the plans found by the limits `judged`.
CrossChecked CrossCheck(const Measured& measured, uint32_t candidates, const Limits& limits,
                        const Limits& judged, ThreadPool& pool);

struct AdviceRequest {
  CandidateRequest candidates;
  MeasureRequest measure;
  Limits limits;
  std::optional<uint64_t> context;  // the model's full context, in tokens
  std::string model;                // model in captions; empty: the snapshot's own
};

// Bytes that a plan would keep at the model's full context, if it kept the same shares there.
struct AtContext {
  uint64_t tokens = 0;
  double full_bytes = 0, kept_bytes = 0;
};

// Result of a search, and the factor by which it is expected to lose more elsewhere.
struct Searched {
  Found found;
  CrossChecked check;
  double optimism = 1;  // as in Advice

  double expected_loss() const { return found.best->outcome.worst_loss() * optimism; }
};
// Tightens the limit on the loss until the extra loss that the folds show fits in it, too.
Searched SearchWithMargin(const Measured& measured, uint32_t candidates, const Limits& limits,
                          ThreadPool& pool);

struct Advice {
  std::vector<Candidate> candidates;
  Effects effects;
  Found found;
  CrossChecked check;
  // Factor by which the best plan is expected to lose more in other rows than in those it was
  // chosen on, from its folds. The limit holds for the loss times this factor. 1 for a plan of one
  // candidate.
  double optimism = 1;
  // Eviction plans of the best plan, and its loss in each run, measured from these plans alone.
  std::vector<std::vector<PlanOfLayer>> plans;  // [run]
  std::vector<Outcome> measured_again;          // [run]
  std::optional<AtContext> at_context;
  // Real losses / predicted ones, as plans of this advice had them in the model (confirm.h).
  std::optional<double> scale;
  std::vector<std::string> warnings, notes;

  const Measured& measured() const { return effects.measured; }
  // Returns the worst loss to expect of the best plan.
  double expected_loss() const { return found.best->outcome.worst_loss() * optimism; }
};

// Searches for the plan that saves most within the limits. The result is the same for any number of
// threads. Throws kUsage if there is nothing to choose from, and as MeasureEffects.
Advice Advise(const Runs& runs, const AdviceRequest& request, ThreadPool& pool,
              Progress* progress = nullptr);

// Returns the loss as users see it: the error instead of its square, or the real KL to expect of
// predicted nats. Limits compare this value.
double Shown(LossKind kind, double loss);
double ShownError(LossKind kind, double loss, double standard_error);
// Returns the loss that Shown() displays as `shown`.
double LossShownAs(LossKind kind, double shown);
// Returns the calibration of one of the kinds of loss in nats.
const eviction::Calibration& FindCalibration(LossKind kind);
// Returns the states of the gradients of a kind of loss; kRecorded without gradients.
eviction::Basis FindBasis(LossKind kind);
// Returns the best kind of loss for which all runs have gradients, if there is one.
std::optional<LossKind> FindFisherKind(const Runs& runs);
// Returns how many units of a choice evict the first token in some run.
uint32_t UnitsWithoutFirst(const Measured& measured, const Choice& choice);

}  // namespace kv::advise
