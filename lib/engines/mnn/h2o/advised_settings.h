// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>

#include "lib/study/advise/advice.h"

namespace kv::mnn::h2o {

// Parameters for the engine, and the result of its own decisions with them.
struct AdvisedSettings {
  const advise::Candidate* candidate = nullptr;  // candidate of the advice that they implement
  eviction::BlockConfig config;
  advise::Outcome outcome;
  // Says that the target ends at another ratio, because the engine applies it again at every
  // trigger.
  std::optional<std::string> compounds;
};

// Replays the engine's code with the advised candidates of policy "block" and returns the first one
// within the limits: from the fewest bytes up, or without a limit on the loss from the most bytes
// down. The engine may evict from the end of the shortest prompt on. Returns nothing if no
// candidate is within the limits, or none was of policy "block".
std::optional<AdvisedSettings> AdviseSettings(const advise::Runs& runs,
                                              const advise::AdviceRequest& request,
                                              const advise::Advice& advice, ThreadPool& pool);

}  // namespace kv::mnn::h2o
