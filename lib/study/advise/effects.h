// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "lib/core/base/progress.h"
#include "lib/study/advise/candidates.h"
#include "lib/study/advise/mixture.h"
#include "lib/study/eviction/quality.h"

namespace kv::advise {

struct MeasureRequest {
  LossKind kind = LossKind::kOutput;
  eviction::Granularity units = eviction::Granularity::kKvHead;
  std::map<uint32_t, double> weights;  // [layer], for kSensitivity
  uint64_t rows = 256;                 // to measure at most, drawn by `seed`; 0: all
  uint64_t seed = 0;
};

// The measured effects, and what was left out of them.
struct Effects {
  Measured measured;
  std::vector<eviction::MeasuredRows> rows;  // [run]
  std::vector<uint64_t> undefined_rows;      // [run]: of these rows, those left out
};

// What becomes of a layer: the outputs of its query heads, what it holds, and in how many bytes.
struct Alternative {
  std::vector<AttentionRows> heads;  // error2, norm2, changed_norm2, dot and log_p_change
  eviction::LayerPlan plan;          // as made: everything stays
  double bytes = 1;                  // of what is held, as a share of its bytes in the snapshot
};
using AlternativesOf = std::function<std::vector<Alternative>(const RunOf& run, size_t layer,
                                                              const eviction::MeasuredRows& rows)>;
// Measures `count` alternatives in every layer of every run; throws as MeasureEffects. Alternative
// i is candidate i of the effects.
Effects MeasureAlternatives(std::span<const RunOf* const> runs, uint32_t count,
                            const AlternativesOf& alternatives_of, const MeasureRequest& request,
                            Progress* progress);

// Replays every candidate in every layer of every run and measures what it does. Throws
// kTraceMismatch if runs are not of one geometry, kUsage if the loss lacks what it needs, kBadField
// if no row of a run is defined.
Effects MeasureEffects(const Runs& runs, const std::vector<Candidate>& candidates,
                       const MeasureRequest& request, ThreadPool& pool,
                       Progress* progress = nullptr);

// One plan per layer of a run.
using PlansOfRun = std::vector<eviction::LayerPlan>;

// Measures any plans as MeasureEffects measures those of candidates: the same loss from the plans
// themselves, for plans that come from elsewhere. Several cost little more than one.
std::vector<Outcome> MeasurePlans(const RunOf& run, std::span<const PlansOfRun> alternatives,
                                  const MeasureRequest& request, ThreadPool& pool);

}  // namespace kv::advise
