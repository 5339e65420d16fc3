// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/advise/advice.h"

namespace kv::advise {

// Of the whole cache over what is left of it, but for rounding.
inline constexpr double kLeastRatio = 0.999999;

// What kvtool.advise says beside its inputs, remarks, engines and savings. page.cc implements
// AdvicePage, report.cc the rest.
struct Report {
  const Runs& runs;
  const AdviceRequest& request;
  const Advice& advice;
};
const Fields<Report>& ReportFields();

// What each candidate of a plan is given to, as "layers 0-3, 7" or "some heads of 5".
TextTable PartsTable(const Advice& advice, const Choice& choice);
// Plans, or `most` of them that are evenly spread, with the best plan and `most` of the others.
TextTable PlansTable(const Advice& advice, const std::vector<Point>& points,
                     size_t most = SIZE_MAX);
// "0.0213 nats" or "4.2%".
std::string LossText(LossKind kind, double loss);
// The same with the standard error and, in nats, the range that the calibration leaves.
std::string LossTextWithError(LossKind kind, double loss, double standard_error);
// What the loss is, in a sentence, and as the label of an axis.
std::string LossName(LossKind kind);
std::string LossLabel(LossKind kind);
// "Losses are calibrated on ..."; empty for a loss that is measured itself.
std::string LossRemark(LossKind kind);
// "streaming 0.25, sinks 4", or what the layers of a mixture do.
std::string PlanText(const Advice& advice, const Point& point);
// A layer (or some of its heads) of a mixture, and what it does in short; empty: nothing.
struct PartOfMixture {
  uint32_t layer = 0;
  std::string text;
};
// "mixed: L0-2 tova 0.75, L3 as it came": what the most layers do, and how many choices there are
// beside these.
std::string MixtureText(const std::vector<PartOfMixture>& parts);
// The loss that is to be expected of a plan of the frontier, as that of the best one is.
double ExpectedLoss(const Advice& advice, const Point& point);
// What the folds say, in a sentence.
std::string CheckText(const Advice& advice);

// A line of the table "choices" of kvtool.h2o-plan/1: what a layer or kv head follows.
struct UnitChoice {
  uint32_t layer = 0;
  std::optional<uint32_t> kv_head;       // none: the choice is that of the whole layer
  const Candidate* candidate = nullptr;  // null: everything stays
};
const Fields<UnitChoice>& UnitChoiceFields();
std::vector<UnitChoice> ChoicesOf(const Advice& advice, const Choice& choice);
// Of lists that stand in a file of their own.
Value ChoicesValue(const std::vector<UnitChoice>& choices);

struct Answer;  // savings.h
// Returns the advice as a self-contained HTML page, which begins with the answer and `command`,
// which carries it out (empty: none).
report::Page AdvicePage(const Runs& runs, const AdviceRequest& request, const Advice& advice,
                        const std::optional<Answer>& answer, const std::string& command);

}  // namespace kv::advise
