// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>

#include "lib/study/advise/advice.h"

namespace kv::mnn::h2o {

// Parameters for the engine, and what comes of them as it decides.
struct AdvisedSettings {
  const advise::Candidate* candidate = nullptr;  // of the advice, which they follow
  eviction::BlockConfig config;
  advise::Outcome outcome;
  // Where the target ends at another ratio, because it is applied again and again.
  std::optional<std::string> compounds;
};

// Replays the engine's code with the advised candidates of policy "block", from the fewest bytes
// up, or without a limit on the loss from the most bytes down, and returns the first that is within
// the limits. The engine may evict from the end of the shortest prompt on. Nothing if none is, or
// none was a candidate.
std::optional<AdvisedSettings> AdviseSettings(const advise::Runs& runs,
                                              const advise::AdviceRequest& request,
                                              const advise::Advice& advice, ThreadPool& pool);

}  // namespace kv::mnn::h2o
