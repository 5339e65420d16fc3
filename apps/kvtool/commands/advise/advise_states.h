// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "lib/study/advise/states.h"

namespace kv {

// `advise` for saved states without recorded runs.

// Returns true for several inputs, and for a file or folder without a trace beside it.
bool AreStates(const std::vector<std::string>& inputs);

struct StatesRequest {
  std::vector<std::string> inputs;
  OpenOptions reading;
  uint64_t idle_days = 30;
};
// Links, pipes, unreadable files and files that are not caches are skipped and named in the result.
// Throws kUnknownFormat if nothing is left.
advise::StatesAdvice AdviseStates(const StatesRequest& request, Context& context);
void PrintStates(Console& console, const advise::StatesAdvice& advice);

}  // namespace kv
