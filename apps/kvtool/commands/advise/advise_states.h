// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "lib/study/advise/states.h"

namespace kv {

// `advise` for saved states that nobody recorded a run of.

// Returns true if inputs are several, or a file or folder beside which no trace lies.
bool AreStates(const std::vector<std::string>& inputs);

struct StatesRequest {
  std::vector<std::string> inputs;
  OpenOptions reading;
  uint64_t idle_days = 30;
};
// Links, pipes, what cannot be read and what is no cache is left out and named in the result.
// Throws kUnknownFormat where nothing is left.
advise::StatesAdvice AdviseStates(const StatesRequest& request, Context& context);
void PrintStates(Console& console, const advise::StatesAdvice& advice);

}  // namespace kv
