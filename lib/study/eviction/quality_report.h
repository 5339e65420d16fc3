// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/study/eviction/replay.h"

// The attention figures of kvtool.h2o. A figure over no rows is null.
namespace kv::eviction {

const Fields<AttentionSummary>& AttentionFields();

// The rows of a run that lose something.
struct EvictingRows {
  const AttentionSummary& summary;
  std::vector<uint32_t> layers;
};

const Fields<EvictingRows>& EvictingFields();
// Nothing if quality was not measured.
std::optional<EvictingRows> EvictingOf(const ReplayRun& run);

// The figures of a query head.
struct Head {
  size_t head;
  const AttentionSummary &all, &evicting;
};

const Fields<Head>& HeadFields();

// Means over a tenth of the decode steps, which show whether the loss grows.
struct Decile {
  uint64_t first_step = 0, steps = 0;
  double mass = 0;
  std::optional<double> output_error;
};

const Fields<Decile>& DecileFields();
std::vector<Decile> DecilesOf(const std::vector<LayerQuality>& layers,
                              const MeasuredRows& measured);

}  // namespace kv::eviction
