// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Shows advice: the document kvtool.advise, its tables, sentences and page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/advise/advice.h"

namespace kv::advise {

// The least ratio of the whole cache to what is left of it: below 1 because of rounding.
inline constexpr double kLeastRatio = 0.999999;

// The fields of kvtool.advise apart from its inputs, remarks, engines and savings. page.cc
// implements AdvicePage, report.cc the rest.
struct Report {
  const Runs& runs;
  const AdviceRequest& request;
  const Advice& advice;
};
const Fields<Report>& ReportFields();

// Returns a table of the layers that each candidate of a plan applies to, as "layers 0-3, 7" or
// "some heads of 5".
TextTable PartsTable(const Advice& advice, const Choice& choice);
// Returns a table of `most` evenly spread plans of each kind, always with the best one.
TextTable PlansTable(const Advice& advice, const std::vector<Point>& points,
                     size_t most = SIZE_MAX);
// Returns "0.0213 nats" or "4.2%".
std::string LossText(LossKind kind, double loss);
// Returns the loss with its standard error and, in nats, the range that the calibration leaves.
std::string LossTextWithError(LossKind kind, double loss, double standard_error);
// Returns a sentence that says what the loss is; it also labels an axis.
std::string LossName(LossKind kind);
std::string LossLabel(LossKind kind);
// Returns "Losses are calibrated on ...", or nothing for a loss that is measured directly.
std::string LossRemark(LossKind kind);
// Returns "streaming 0.25, sinks 4", or what the layers of a mixture do.
std::string PlanText(const Advice& advice, const Point& point);
// A layer of a mixture, or some of its heads, and what is done to it; empty if nothing.
struct PartOfMixture {
  uint32_t layer = 0;
  std::string text;
};
// Returns "mixed: L0-2 tova 0.75, L3 unchanged": the choice that most layers follow, then the
// number of other choices.
std::string MixtureText(const std::vector<PartOfMixture>& parts);
// Returns the loss to expect of a plan of the frontier, computed as for the best plan.
double ExpectedLoss(const Advice& advice, const Point& point);
// Returns a sentence on what the folds show.
std::string CheckText(const Advice& advice);

// A line of the table "choices" of kvtool.h2o-plan/1: the candidate that a layer or kv head
// follows.
struct UnitChoice {
  uint32_t layer = 0;
  std::optional<uint32_t> kv_head;       // empty: the choice applies to the whole layer
  const Candidate* candidate = nullptr;  // null: every token is kept
};
const Fields<UnitChoice>& UnitChoiceFields();
std::vector<UnitChoice> ListChoices(const Advice& advice, const Choice& choice);
// Returns the choices as a list in a document of its own.
Value ChoicesValue(const std::vector<UnitChoice>& choices);

struct Answer;  // savings.h
// Returns the advice as a self-contained HTML page, which begins with the answer and the command
// that carries it out (`command`; empty: none).
report::Page AdvicePage(const Runs& runs, const AdviceRequest& request, const Advice& advice,
                        const std::optional<Answer>& answer, const std::string& command);

}  // namespace kv::advise
