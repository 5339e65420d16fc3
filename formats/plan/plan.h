// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/eviction_plan.h"

namespace kv {

// What a plan (kvtool.h2o-plan/1) says beside its events.
struct PlanHeader {
  std::string engine, schedule, policy;
  // The snapshot it was made of.
  std::string source_file, source_xxh3;
  uint64_t source_bytes = 0;
};

// Reads a plan event by event: those of every step would not fit in memory. `on_event` gets each
// with its number. Throws kBadText, kBadVersion, kBadField with the event's number, kMissingRecord.
PlanHeader ReadPlan(const FileSource& file,
                    const std::function<void(uint64_t number, const PlanEvent& event)>& on_event);

}  // namespace kv
