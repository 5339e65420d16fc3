// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/study/gate/result.h"

namespace kv::gate {

// The body of kvtool.gate/1 after its header: the keys of the engine's suite, then ours. An empty
// `generated_at` becomes null.
Json SummaryJson(const GateResult& result, const std::string& generated_at,
                 const OutputNames& outputs);

// The row of a case as its engine's own tools write it: an entry of "rows" and a line of
// cases.jsonl. What was not measured is null.
Json RowOf(const CaseResult& result, const OutputNames& outputs);

}  // namespace kv::gate
