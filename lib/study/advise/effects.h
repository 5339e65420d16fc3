// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Measures what each candidate does to each layer or kv head of each run, which is the input of the
// search.
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
  uint64_t rows = 256;                 // largest number of rows to measure, drawn by `seed`; 0: all
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
  eviction::LayerPlan plan;          // as it was replayed; the default keeps everything
  double bytes = 1;  // bytes of the tokens held, as a share of their bytes in the snapshot
};
using AlternativesOf = std::function<std::vector<Alternative>(const RunOf& run, size_t layer,
                                                              const eviction::MeasuredRows& rows)>;
// Measures `count` alternatives in every layer of every run. Alternative i becomes candidate i of
// the effects. Throws as MeasureEffects.
Effects MeasureAlternatives(std::span<const RunOf* const> runs, uint32_t count,
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
std::vector<Outcome> MeasurePlans(const RunOf& run, std::span<const PlansOfRun> alternatives,
                                  const MeasureRequest& request, ThreadPool& pool);

}  // namespace kv::advise
