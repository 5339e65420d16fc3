// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/study/gate/result.h"

namespace kv::gate {

// Where this run's files go, as given; empty: not written.
struct OutputNames {
  std::string summary_json, summary_md, cases_jsonl;
};

// The body of kvtool.gate/1 after its header: the original's keys, then ours. `generated_at` may be
// empty, which makes it null.
Json SummaryJson(const GateResult& result, const std::string& generated_at,
                 const OutputNames& outputs);

// The original's row of a case, as in "rows" and in cases.jsonl. What was not measured is null.
Json OriginalRow(const CaseResult& result, const OutputNames& outputs);

}  // namespace kv::gate
