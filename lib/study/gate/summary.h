// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by summary.cc, ci_report.cc

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

// Returns the row of a case as its engine's own tools write it: an entry of "rows" and a line of
// cases.jsonl. Figures that were not measured are null.
Value MakeRow(const GateResult& gate, const CaseResult& result, const OutputNames& outputs);

// Writes summary.md: failures and how to reproduce them, then the bullets and lines of the engine's
// own summary.md word for word, then all rules and the true figures. Without a case of an engine's
// suite, the engine's lines are omitted. It can serve as the summary of a CI job.
std::string SummaryMarkdown(const GateResult& result, const OutputNames& outputs);

// A line that GitHub Actions shows beside a file: "::error file=gate.json,line=3,title=...::text".
struct Annotation {
  bool is_error = true;  // else a warning
  std::string file;      // relative to the repository; may be empty
  uint64_t line = 0;     // from 1; 0: unknown
  std::string title, text;
};

// Returns an annotation as one line without newline. It remains one command whatever the members
// contain: line ends and the separators of a command are escaped as the runner requires.
std::string WorkflowCommand(const Annotation& annotation);

// Returns the line of each case's name in a config, counted from 1.
std::map<std::string, uint64_t> LinesOfCases(std::string_view config, const GateResult& result);

// Returns why a gate failed or is inconclusive, most important first. GitHub shows ten errors and
// ten warnings of a step, so no more are returned: the last one gives the number of omitted ones.
std::vector<Annotation> MakeAnnotations(const GateResult& result, const std::string& file,
                                        const std::map<std::string, uint64_t>& lines);

}  // namespace kv::gate
