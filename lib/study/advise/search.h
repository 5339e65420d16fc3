// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/advise/mixture.h"

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

}  // namespace kv::advise
