// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares predicted losses with those that a model itself had under the same plans, and corrects
// the scale of all predictions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/advise/savings.h"

namespace kv::advise {

// A plan to run in the model: the answer, or the next smaller or larger plan of its frontier.
struct PlanToConfirm {
  std::string_view place;  // larger, chosen, smaller
  Answer described;
  Outcome outcome;
  std::vector<std::vector<PlanOfLayer>> evictions;  // [run]
  // Pair of types of each measured layer; empty if the plan is of eviction alone.
  std::vector<std::optional<uint32_t>> pairs;
};
// Returns the answer and its neighbours, largest first. A neighbour differs by at least a tenth of
// the bytes and loses something, since plans that are nearly the same measure nothing new.
std::vector<PlanToConfirm> ListPlansToConfirm(const Runs& runs, const AdviceRequest& request,
                                              const Advice& advice, const Savings* savings,
                                              const Answer& answer, ThreadPool& pool);

// The loss of a plan in the model.
struct RealLoss {
  double nats = 0;
  std::optional<double> standard_error;  // over the rows
  uint64_t rows = 0;
};

// A plan in one run: its predicted loss with the range of four fifths of the study's runs, and the
// real one.
struct ConfirmedPlan {
  std::string run, plan;
  std::string_view place, kind;
  double bytes_per_token = 0, predicted = 0, low = 0, high = 0;  // nats
  RealLoss real;

  bool is_within_band() const { return low <= real.nats && real.nats <= high; }
  std::optional<double> Factor() const;  // real / predicted, if both are above 0
};
ConfirmedPlan ConfirmPlan(const Runs& runs, size_t run, const PlanToConfirm& plan,
                          const RealLoss& real);

struct Confirmation {
  std::string model;
  std::vector<ConfirmedPlan> plans;
  std::optional<double> scale;  // median factor of the plans
  // With a scale: loss to expect of the answer, and the limit for a search whose plans meet the
  // real one.
  std::optional<double> expected_loss, search_limit;
  bool within_limits = true;  // false if the corrected loss of the answer is beyond the limit
  // The plan of the frontier that corrected losses choose, if it is not the answer.
  std::optional<Answer> changed;
};
// Corrects the answer's loss by the confirmed plans, and chooses again among the plans of its
// frontier.
Confirmation Correct(const Runs& runs, const AdviceRequest& request, const Advice& advice,
                     const Savings* savings, const Answer& answer,
                     std::vector<ConfirmedPlan> plans);

const Fields<Confirmation>& ConfirmationFields();
// Returns a table of the plans, and sentences on the scale and the choice.
TextTable ConfirmedTable(const Confirmation& confirmation);
std::vector<std::string> ConfirmationTexts(const Confirmation& confirmation, const Answer& answer);
void AddConfirmation(const Confirmation& confirmation, const Answer& answer, report::Page& page);

}  // namespace kv::advise
