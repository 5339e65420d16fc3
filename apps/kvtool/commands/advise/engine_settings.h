// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/study/advise/advice.h"

namespace kv {

// How an engine is told to do what one candidate does, and what comes of it.
struct EngineSettings {
  std::string engine;
  std::string configuration;  // of the engine, which takes the parameters; empty: its own
  const advise::Candidate* candidate = nullptr;
  Value parameters;
  double ratio = 1, loss = 0;  // of the worst prompt, as it is shown
  std::string note;
};

// For each engine that has parameters for some policy: those of the smallest plan within the limits
// that they can express. Empty if none is.
std::vector<EngineSettings> EngineSettingsOf(const advise::Runs& runs,
                                             const advise::AdviceRequest& request,
                                             const advise::Advice& advice, ThreadPool& pool);

const Fields<EngineSettings>& EngineSettingsFields();

}  // namespace kv
