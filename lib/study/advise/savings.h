// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by savings.cc and savings_report.cc

#include <optional>
#include <string>
#include <vector>

#include "lib/study/advise/advice.h"
#include "lib/study/advise/report.h"
#include "lib/study/quantisation/stored_layer.h"

namespace kv::advise {

// A way to save memory in one layer: evict tokens as a candidate does, store smaller types, or
// both.
struct Saving {
  std::optional<uint32_t> candidate;  // index into the advice's candidates
  std::optional<uint32_t> types;      // index into the request's pairs
};

struct SavingsRequest {
  quantisation::StoreRequest store;
  std::vector<quantisation::TypePair> pairs;
};

struct Savings {
  SavingsRequest request;
  std::vector<Saving> options;  // one per candidate of `measured`
  // for an option of both kinds the sum of the two losses; otherwise NaN
  std::vector<double> added_loss;
  Measured measured;  // its units are layers
  Found types;        // mixtures of types without eviction
  Searched searched;  // the search among all options
  std::vector<std::string> warnings;

  // The best point's eviction in each run, its loss measured again from these plans, and the pair
  // of types of each measured layer, unless it is the first run's own.
  std::vector<std::vector<PlanOfLayer>> plans;  // [run]
  std::vector<Outcome> measured_again;          // [run]
  std::vector<std::optional<uint32_t>> types_of_layers;

  const Saving* FindOption(const Choice& choice, size_t unit) const;
  std::vector<std::optional<uint32_t>> ListPairs(const Choice& choice) const;  // [unit]
  double expected_loss() const { return searched.expected_loss(); }
};

// Returns why types cannot be measured, or "" if the queries and the cache's own types allow it.
std::string WhyNoTypes(const Runs& runs);
// Measures each pair of types in each layer, then the best candidates of the advice with the best
// pairs, replaying each combination. Searches among all of them for the plan that saves most within
// the request's limits. Throws what quantisation::StoreLayer throws.
Savings FindSavings(const Runs& runs, const AdviceRequest& request, const SavingsRequest& types,
                    const Advice& advice, ThreadPool& pool, Progress* progress = nullptr);

// Replays one run with the evictions of a choice among all options.
std::vector<PlanOfLayer> PlanEvictions(const AdviseRun& run, const AdviceRequest& request,
                                       const Advice& advice, const Savings& savings,
                                       const Choice& choice, ThreadPool& pool);

// Size and speed of a codec on this cache's own bytes.
struct LosslessLevel {
  std::string name;
  double ratio = 1;
};

// One way to save memory: a row of the table, whatever its kind.
struct SavingRow {
  std::string_view kind;  // none, eviction, types, both, lossless or offload
  std::string plan;
  double bytes_per_token = 0;  // bytes at the end in the engine's memory, per token seen
  double link_bytes = 0;       // bytes per token and step that are fetched from elsewhere
  double mean_loss = 0, worst_loss = 0, standard_error = 0;  // figures of the worst run
  double added_loss = NAN;  // the losses of eviction and of types, added
  bool on_front = false;    // true if no other row has fewer bytes in memory and no more loss
  std::string flags;        // llama.cpp's flags, if it can express the row
};
std::vector<SavingRow> SavingRows(const Runs& runs, const Advice& advice, const Savings& savings,
                                  const std::vector<LosslessLevel>& levels);

// Returns "K q8_0, V q5_1".
std::string TypesText(const Savings& savings, uint32_t pair);
// Returns llama.cpp's flags for the pairs of types of all layers, or "" if layers differ or it has
// no such type.
std::string WriteFlags(const Runs& runs, const Savings& savings,
                       const std::vector<std::optional<uint32_t>>& pairs);

// The single plan that advice recommends: the smaller of the best plans found by eviction alone and
// among everything, or without a limit on the loss the one that loses less.
struct Answer {
  LossKind loss_kind = LossKind::kOutput;
  std::string_view kind;  // none, eviction, types or both
  std::string plan;
  bool is_chosen = false;  // true: found among all options; false: the best by eviction alone
  double bytes_per_token = 0, ratio = 1, worst_loss = 0, expected_loss = 0;
  std::string flags;  // llama.cpp's flags, if it can express the plan
};
// Describes a point that was found by eviction alone (`savings` is null) or among everything.
Answer DescribePoint(const Runs& runs, const Advice& advice, const Savings* savings,
                     const Point& point, double expected_loss);
// Returns nothing if no plan is within the limits. `savings` may be null.
std::optional<Answer> FindAnswer(const Runs& runs, const AdviceRequest& request,
                                 const Advice& advice, const Savings* savings);
// Returns "both: mixed: L0 tova 0.75, L3 q8_0/q4_0: 1312 bytes a token, 1.561x smaller, expected
// loss 9.80%".
std::string AnswerText(const std::optional<Answer>& answer);
const Fields<Answer>& AnswerFields();

// The part "savings" of the document.
struct SavingsReport {
  const Runs& runs;
  const AdviceRequest& request;
  const Savings& savings;
  const std::vector<SavingRow>& rows;
  std::optional<double> scale = std::nullopt;  // as in Advice
};
const Fields<SavingsReport>& SavingsFields();
// Adds the chart and the table of savings to a page.
void AddSavings(const SavingsReport& report, report::Page& page);
// Returns the table "choices" of kvtool.h2o-plan/1 for the chosen point.
std::vector<UnitChoice> ChosenChoices(const Advice& advice, const Savings& savings);
// Returns the type of a measured layer that stores a pair of types, as "q8_0"; the cache's own type
// where it does not change.
std::string TypeOfLayer(const Runs& runs, const Savings& savings, std::optional<uint32_t> pair,
                        size_t layer, bool is_key);

}  // namespace kv::advise
