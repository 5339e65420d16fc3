// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by summary_view.cc, summary_page.cc

#include "lib/report/html.h"
#include "lib/study/gate/result.h"

namespace kv::gate {

// A summary.json: either kvtool's own (kvtool.gate/1) or that of an engine's suite.
struct Summary {
  std::string file;  // as given
  Json document;
};

// Parses a summary and checks the fields that the renderers need. Throws kBadText, kBadField,
// kLimit.
Summary ParseSummary(std::string_view text, std::string_view file);

// A summary.json in the form that renderers need; kvtool's own and that of an engine's suite are
// the same here. Members are empty if the document lacks them.

// Writes an outcome such as "2.61x, needs >= 3x".
std::string Sentence(const RuleOutcome& outcome);
// Returns the value as a share of its limit; nothing for rules where that is meaningless.
std::optional<double> Gauge(const RuleOutcome& outcome);

struct CaseView {
  std::string name, suite, mode, origin, reason;
  Status status = Status::kNotRun;
  std::vector<RuleOutcome> rules;
  // Figures by name, with dots for nested objects: by the engine's definitions, and the true ones.
  std::vector<std::pair<std::string, Json>> engine, truth;
  std::vector<std::pair<std::string, std::string>> missing;  // a figure, and why it is unknown
  std::vector<Json> rows;                                    // one per prompt length
  std::vector<LayerFigures> layers;
  std::vector<ResidentSample> resident;
  std::vector<std::string> notes;

  // Returns the first rule that failed, else the one of the case's status with the least slack; may
  // be null.
  const RuleOutcome* Deciding() const;
  std::optional<double> Figure(std::string_view name) const;  // prefers the true figures
};

struct SummaryView {
  std::string file, generated_at, commit, tool, reason, baseline_file;
  bool pass = false, is_original = false;
  std::optional<double> noise;
  std::vector<std::string> notes;
  std::vector<std::string> absent;  // cases of the baselines that this run lacks
  std::vector<CaseView> cases;

  size_t Count(Status status) const;
};

// Reads a summary. A case with a failed rule has failed, and so has a summary with such a case,
// whatever else the document says.
SummaryView MakeView(const Summary& summary, const Engine& engine);

// Writes a figure in the unit that its name implies, such as "3.11x", "1.2 GiB", "13.9 ms" or
// "4.8%".
std::string FigureText(std::string_view name, double value);

// Renders a summary as JUnit XML, with one test suite per case and one test per rule.
std::string SummaryJunit(const Summary& summary, const Engine& engine);

// Returns the newest summary by generated_at, or the last one if any lacks a date. The list must
// not be empty.
const Summary& Newest(std::span<const Summary> summaries);

// Renders the newest summary as a self-contained HTML page with the history of all of them. Any key
// may be absent; the page shows those that exist.
report::Page SummaryPage(std::span<const Summary> summaries, const Engine& engine);

}  // namespace kv::gate
