// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/result.h"
#include "lib/study/gate/summary_page.h"

namespace kv::gate {

// A summary.json as readers see it: kvtool's own and the original's look alike from here on. What a
// document lacks is empty.

// "2.61x, needs >= 3x"
std::string Sentence(const RuleOutcome& outcome);
// The value as a share of its limit, for rules where that says something.
std::optional<double> Gauge(const RuleOutcome& outcome);

struct CaseView {
  std::string name, suite, mode, origin, reason;
  Status status = Status::kNotRun;
  std::vector<RuleOutcome> rules;
  // Figures by name, dots between the names of objects: of the engine's definitions, and true ones.
  std::vector<std::pair<std::string, Json>> engine, truth;
  std::vector<std::pair<std::string, std::string>> missing;  // figure and why nobody measured it
  std::vector<Json> rows;                                    // one per prompt length
  std::vector<LayerFigures> layers;
  std::vector<ResidentSample> resident;
  std::vector<std::string> notes;

  // The first rule that failed, else the one with the least slack; null without rules.
  const RuleOutcome* Deciding() const;
  std::optional<double> Figure(std::string_view name) const;  // true ones first
};

struct SummaryView {
  std::string file, generated_at, tool, reason, baseline_file;
  bool pass = false, is_original = false;
  std::optional<double> noise;
  std::vector<std::string> notes;
  std::vector<CaseView> cases;

  size_t Count(Status status) const;
};

// A case with a rule that failed has failed, and so has a summary with such a case, whatever else
// the document says of them.
SummaryView ViewOf(const Summary& summary, Engines engines);

// A figure in the unit that its name says: "3.11x", "1.2 GiB", "13.9 ms", "4.8%".
std::string FigureText(std::string_view name, double value);

}  // namespace kv::gate
