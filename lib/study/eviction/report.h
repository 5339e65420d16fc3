// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"
#include "lib/fields/fields.h"
#include "lib/study/eviction/predicted_kl.h"
#include "lib/study/eviction/timeline.h"

// What documents of several commands say of evictions.
namespace kv::eviction {

// An eviction of kvtool.h2o-plan/1: what a layer or kv head keeps from a position on.
struct PlanEvent {
  uint32_t layer = 0;
  std::optional<uint32_t> kv_head;  // none: all of the layer
  Eviction eviction;
  KeepPlan kept;  // positions
};
const Fields<PlanEvent>& PlanEventFields();
// Those but the position, for events that have one of their own.
const Fields<PlanEvent>& PlanEventPartFields();

// [first, count] of each range.
std::vector<std::array<uint64_t, 2>> RangesOf(const KeepPlan& plan);

const Fields<Calibration>& CalibrationFields();
const Fields<PredictedKl>& PredictedKlFields(Cause cause);

}  // namespace kv::eviction
