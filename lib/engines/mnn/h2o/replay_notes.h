// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/engines/mnn/h2o/replay.h"

namespace kv::mnn::h2o {

// What a reader of the figures must know about the rules: one that comes down to another here, a
// budget that is met in blocks, rows that the trace lacks.
std::vector<std::string> NotesOf(const ReplayResult& result, const AttentionTrace& trace);

// In one line, where a target is a ratio of the cache as it is at each trigger: which targets end
// elsewhere because it was applied again, or because the floor decides.
std::optional<std::string> WhereTargetsEnd(const ReplayResult& result);

}  // namespace kv::mnn::h2o
