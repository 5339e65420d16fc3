// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/fields/fields.h"
#include "lib/study/gate/result.h"

namespace kv::gate {

// The body of kvtool.gate/1 after its header: the keys of the engine's suite, then ours.
struct GateSummary {
  const GateResult& result;
  std::string generated_at;  // empty becomes null
  OutputNames outputs;
};

// The fields of a summary. Only the schema depends on the engine, whose parameters `param_text`
// describes; a program has one engine.
const Fields<GateSummary>& SummaryFields(const Engine& engine,
                                         std::string_view (*param_text)(std::string_view name));

// The row of a case as its engine's own tools write it: an entry of "rows" and a line of
// cases.jsonl. Figures that were not measured are null.
Value RowOf(const GateResult& gate, const CaseResult& result, const OutputNames& outputs);

}  // namespace kv::gate
