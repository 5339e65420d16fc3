// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/confirm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/study/statistics/distribution.h"

namespace kv::advise {
namespace {

constexpr double kNextBytes = 1.1;  // least ratio of bytes of a plan and its neighbour
// Least saving of bytes by which another plan replaces an answer that is within the limits. The
// search exchanges options at its limit, so that its best plan lies a little below the frontier.
constexpr double kClearlySmaller = 0.99;

// The plans among which an answer was found.
struct Searching {
  const std::vector<Point>& frontier;
  const Point& best;
  double optimism;  // factor of the expected loss of mixtures

  double ExpectedLoss(const Point& point) const {
    return point.outcome.worst_loss() * (point.uniform ? 1 : optimism);
  }
};

Searching FindSearching(const Advice& advice, const Savings* savings, const Answer& answer) {
  if (!answer.is_chosen)
    return {advice.found.frontier, *advice.found.best, advice.check.optimism()};
  const Searched& searched = savings->searched;
  return {searched.found.frontier, *searched.found.best, searched.check.optimism()};
}

const Point* FindNeighbour(const Searching& searching, bool is_larger) {
  const double share = searching.best.outcome.mean_share();
  const Point* found = nullptr;
  double nearest = INFINITY;
  for (const Point& point : searching.frontier) {
    const double times = point.outcome.mean_share() / share;
    const double apart = is_larger ? times : 1 / times;
    if (!(point.outcome.worst_loss() > 0) || apart < kNextBytes || apart >= nearest) continue;
    nearest = apart;
    found = &point;
  }
  return found;
}

// Returns the smallest plan whose expected loss is within a limit; nullptr if there is none.
const Point* FindSmallest(const Searching& searching, double limit, double largest_share) {
  const Point* smallest = nullptr;
  for (const Point& point : searching.frontier) {
    if (searching.ExpectedLoss(point) > limit ||
        !Meets(point.outcome, {std::nullopt, largest_share}))
      continue;
    if (smallest == nullptr || point.outcome.mean_share() < smallest->outcome.mean_share())
      smallest = &point;
  }
  return smallest;
}

std::string NatsWithError(const ConfirmedPlan& of) {
  const std::string error =
      of.real.standard_error ? fmt::format(" +-{:.2g}", *of.real.standard_error) : "";
  return format::Nats(of.real.nats) + error;
}

const Fields<ConfirmedPlan>& ConfirmedPlanFields() {
  using P = ConfirmedPlan;
  static const Fields<P> fields = {
      {"run", "Name of the run as it was given", &P::run},
      {"place", "The answer (chosen), or the next larger or smaller plan of its frontier",
       &P::place, OneOf("larger", "chosen", "smaller")},
      {"kind", "Kind of saving: eviction, types or both", &P::kind,
       OneOf("eviction", "types", "both")},
      {"plan", "The plan in words", &P::plan},
      {"bytes_per_token", "Bytes at the end, in all layers, per token seen", &P::bytes_per_token,
       AtLeast(0)},
      {"predicted_nats", "Predicted loss of this run, in nats", &P::predicted, AtLeast(0)},
      {"low_nats", "Lower end of the range that held four fifths of the study's runs", &P::low,
       AtLeast(0)},
      {"high_nats", "Upper end of this range", &P::high, AtLeast(0)},
      {"real_nats", "Loss of this run in the model, in nats",
       [](const P& of) { return of.real.nats; }, AtLeast(0)},
      {"standard_error", "Standard error of the real loss, over the rows; null: one row",
       [](const P& of) { return of.real.standard_error; }, AtLeast(0)},
      {"rows", "Number of decode rows that the model read",
       [](const P& of) { return of.real.rows; }},
      {"factor", "Real / predicted loss; null: one of them is 0", &P::Factor, AtLeast(0)},
      {"within_band", "Whether the real loss is in the predicted range", &P::is_within_band}};
  return fields;
}

// Columns of tables, which show a figure together with its range or error.
const Fields<ConfirmedPlan>& ConfirmedColumns() {
  using P = ConfirmedPlan;
  static const Fields<P> columns = {
      Fields<P>::Column("run", &P::run),
      Fields<P>::Column("which", &P::place),
      Fields<P>::Column("what", &P::kind),
      Fields<P>::Column("plan", &P::plan),
      Fields<P>::Column("bytes/token",
                        [](const P& of) { return fmt::format("{:.0f}", of.bytes_per_token); }),
      Fields<P>::Column("predicted nats",
                        [](const P& of) {
                          return fmt::format("{} [{:.2g}, {:.2g}]", format::Nats(of.predicted),
                                             of.low, of.high);
                        }),
      Fields<P>::Column("real nats", NatsWithError),
      Fields<P>::Column("rows", [](const P& of) { return of.real.rows; }),
      Fields<P>::Column("factor", &P::Factor, format::AsNats),
      Fields<P>::Column("inside", [](const P& of) { return of.is_within_band() ? "yes" : "no"; })};
  return columns;
}

}  // namespace

std::vector<PlanToConfirm> ListPlansToConfirm(const Runs& runs, const AdviceRequest& request,
                                              const Advice& advice, const Savings* savings,
                                              const Answer& answer, ThreadPool& pool) {
  const Searching searching = FindSearching(advice, savings, answer);
  const Savings* const among = answer.is_chosen ? savings : nullptr;
  std::vector<PlanToConfirm> plans;
  const auto add = [&](std::string_view place, const Point* point) {
    if (point == nullptr) return;
    PlanToConfirm& plan = plans.emplace_back();
    plan.place = place;
    plan.described = DescribePoint(runs, advice, among, *point, point->outcome.worst_loss());
    plan.outcome = point->outcome;
    if (among != nullptr) plan.pairs = among->ListPairs(point->choice);
    for (const auto& run : runs) {
      plan.evictions.push_back(
          among != nullptr ? PlanEvictions(*run, request, advice, *among, point->choice, pool)
                           : MakePlans(*run, advice.candidates, advice.measured(), point->choice,
                                       request.measure.seed, pool));
    }
  };
  add("larger", FindNeighbour(searching, true));
  add("chosen", &searching.best);
  add("smaller", FindNeighbour(searching, false));
  return plans;
}

std::optional<double> ConfirmedPlan::Factor() const {
  return real.nats > 0 && predicted > 0 ? std::optional(real.nats / predicted) : std::nullopt;
}

ConfirmedPlan ConfirmPlan(const Runs& runs, size_t run, const PlanToConfirm& plan,
                          const RealLoss& real) {
  const Answer& described = plan.described;
  const eviction::Calibration& band = FindCalibration(described.loss_kind);
  const double loss = plan.outcome.loss[run];
  return {runs[run]->name(),
          described.plan,
          plan.place,
          described.kind,
          described.bytes_per_token,
          Shown(described.loss_kind, loss),
          loss / band.p90,
          loss / band.p10,
          real};
}

Confirmation Correct(const Runs& runs, const AdviceRequest& request, const Advice& advice,
                     const Savings* savings, const Answer& answer,
                     std::vector<ConfirmedPlan> plans) {
  Confirmation of;
  of.plans = std::move(plans);
  std::vector<double> factors;
  for (const ConfirmedPlan& plan : of.plans) {
    if (const auto factor = plan.Factor()) factors.push_back(*factor);
  }
  if (factors.empty()) return of;
  std::ranges::sort(factors);
  of.scale = QuantileOfSorted(factors, 0.5);
  of.expected_loss = Shown(answer.loss_kind, answer.expected_loss * *of.scale);
  if (!request.limits.loss) return of;  // a common factor changes no order
  const double limit = *request.limits.loss / *of.scale;
  of.search_limit = Shown(answer.loss_kind, limit);
  of.within_limits = answer.expected_loss <= limit;
  const Searching searching = FindSearching(advice, savings, answer);
  const Point* const smallest = FindSmallest(searching, limit, request.limits.share);
  if (smallest == nullptr) return of;
  // The margin of the search may have left a smaller plan without any correction.
  double least = searching.best.outcome.mean_share();
  if (const Point* before = FindSmallest(searching, *request.limits.loss, request.limits.share))
    least = std::min(least, before->outcome.mean_share());
  const bool is_smaller = smallest->outcome.mean_share() < kClearlySmaller * least;
  if (of.within_limits && !is_smaller) return of;
  of.changed = DescribePoint(runs, advice, answer.is_chosen ? savings : nullptr, *smallest,
                             searching.ExpectedLoss(*smallest) * *of.scale);
  return of;
}

const Fields<Confirmation>& ConfirmationFields() {
  using C = Confirmation;
  static const Fields<C> fields = {
      {"model", "The model that the plans were applied in, as it was given", &C::model},
      {"plans", "The answer and its neighbours, of each run", &C::plans, ConfirmedPlanFields(),
       Items(1)},
      {"scale", "Median factor of the plans, real / predicted loss; null: no plan has one",
       &C::scale},
      {"expected_loss", "Expected loss of the answer times the scale, in nats; null: no scale",
       &C::expected_loss},
      {"within_limits", "Whether this loss is within the limit", &C::within_limits},
      {"search_limit",
       "Limit to search with, so that real losses meet the limit; null: no scale or no limit",
       &C::search_limit},
      {"changed",
       "Plan of the frontier that corrected losses choose; its expected_loss is corrected; null: "
       "the answer stays, or no plan is within the limits",
       &C::changed, AnswerFields()}};
  return fields;
}

TextTable ConfirmedTable(const Confirmation& confirmation) {
  TextTable table = MakeTextTable(ConfirmedColumns(), confirmation.plans);
  const std::string& run = table.rows.front().front();
  if (std::ranges::any_of(table.rows, [&](const auto& row) { return row.front() != run; }))
    return table;
  table.head.erase(table.head.begin());
  for (std::vector<std::string>& row : table.rows) row.erase(row.begin());
  return table;
}

std::vector<std::string> ConfirmationTexts(const Confirmation& confirmation, const Answer& answer) {
  if (!confirmation.scale)
    return {"no correction: no plan has a loss both in the prediction and in the model"};
  std::vector<std::string> texts = {fmt::format(
      "real / predicted: {} at the median; the answer's expected loss of {} becomes {} nats",
      format::Nats(*confirmation.scale), LossText(answer.loss_kind, answer.expected_loss),
      format::Nats(*confirmation.expected_loss))};
  if (!confirmation.search_limit) return texts;
  if (confirmation.changed) {
    texts.push_back("corrected losses change the choice: " + AnswerText(confirmation.changed));
  } else if (!confirmation.within_limits) {
    texts.push_back("no plan is within the limits by corrected losses");
  } else {
    texts.push_back("corrected losses keep the choice");
    return texts;
  }
  texts.push_back(
      fmt::format("to search with corrected losses, run this again with --max-kl {} in place of "
                  "--confirm",
                  format::Nats(*confirmation.search_limit)));
  return texts;
}

void AddConfirmation(const Confirmation& confirmation, const Answer& answer, report::Page& page) {
  page.Heading("Confirmed in the model");
  page.Table(ConfirmedTable(confirmation));
  for (const std::string& text : ConfirmationTexts(confirmation, answer))
    page.Paragraph(text + ".");
}

}  // namespace kv::advise
