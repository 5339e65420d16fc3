// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/study/eviction/replay.h"

namespace kv::eviction {

// Returns notes that a reader of the figures needs: a policy that amounts to another one here, a
// budget that is only met in whole blocks, rows that the trace lacks.
std::vector<std::string> NotesOf(const ReplayResult& result, const AttentionTrace& trace);

// Returns the policy that a run amounts to: what it keeps is what that one would. Empty if none.
std::string_view SamePolicy(const ReplayRun& run);

// Returns one line about targets that are ratios of the cache as it is at each trigger: it names
// those that end elsewhere, because the ratio was applied more than once or because the floor
// decided.
std::optional<std::string> WhereTargetsEnd(const ReplayResult& result);

}  // namespace kv::eviction
