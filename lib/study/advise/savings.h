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

// What a layer may do about memory: lose tokens as a candidate does, be stored in smaller types, or
// both.
struct Saving {
  std::optional<uint32_t> candidate;  // of the advice
  std::optional<uint32_t> types;      // of the request's pairs
};

struct SavingsRequest {
  quantisation::StoreRequest store;
  std::vector<quantisation::TypePair> pairs;
};

struct Savings {
  SavingsRequest request;
  std::vector<Saving> options;     // what the candidates of `measured` are
  std::vector<double> added_loss;  // of an option of both kinds: the sum of the two; else NaN
  Measured measured;               // its units are layers
  Found types;                     // mixtures of types alone
  Searched searched;               // of everything
  std::vector<std::string> warnings;

  // Of the best point: its eviction in each run, what it cost when it was measured again from
  // these, and the pair of types of each measured layer, if it is not the first run's own.
  std::vector<std::vector<PlanOfLayer>> plans;  // [run]
  std::vector<Outcome> measured_again;          // [run]
  std::vector<std::optional<uint32_t>> types_of_layers;

  const Saving* FindOption(const Choice& choice, size_t unit) const;
  double expected_loss() const { return searched.expected_loss(); }
};

// Whether queries and the cache's own types allow it; else why not.
std::string WhyNoTypes(const Runs& runs);
// Measures each pair of types in each layer, then the best candidates of the advice with the best
// pairs, each by a replay of the combination, and searches among all of them for what saves most
// within the request's limits. Throws as quantisation::StoreLayer.
Savings FindSavings(const Runs& runs, const AdviceRequest& request, const SavingsRequest& types,
                    const Advice& advice, ThreadPool& pool, Progress* progress = nullptr);

// What a codec does to this cache's own bytes.
struct LosslessLevel {
  std::string name;
  double ratio = 1;
};

// One way to save memory: a row of the table, of all kinds.
struct SavingRow {
  std::string_view kind;  // none, eviction, types, both, lossless, offload
  std::string plan;
  double bytes_per_token = 0;  // in the engine's memory at the end, of all tokens seen
  double link_bytes = 0;       // per token and step that come from elsewhere
  double mean_loss = 0, worst_loss = 0, standard_error = 0;  // of the worst run
  double added_loss = NAN;  // what eviction and types alone add up to
  bool on_front = false;    // no other row in memory has fewer bytes and no more loss
  std::string flags;        // llama.cpp's, where they can say it
};
std::vector<SavingRow> SavingRows(const Runs& runs, const Advice& advice, const Savings& savings,
                                  const std::vector<LosslessLevel>& levels);

// "K q8_0, V q5_1".
std::string TypesText(const Savings& savings, uint32_t pair);
// What llama.cpp takes for the types of a choice: empty if layers differ or it has no such type.
std::string FlagsOf(const Runs& runs, const Savings& savings);

// The one plan that advice ends with: of what was found by eviction alone and among everything, the
// smaller one, or without a limit on the loss the one that loses less.
struct Answer {
  LossKind loss_kind = LossKind::kOutput;
  std::string_view kind;  // none, eviction, types, both
  std::string plan;
  bool is_chosen = false;  // among everything, or the best by eviction alone
  double bytes_per_token = 0, ratio = 1, worst_loss = 0, expected_loss = 0;
  std::string flags;  // llama.cpp's, where they can say it
};
// `savings` may be null. Empty if no plan is within the limits.
std::optional<Answer> FindAnswer(const Runs& runs, const AdviceRequest& request,
                                 const Advice& advice, const Savings* savings);
// "both: mixed: L0 tova 0.75, L3 q8_0/q4_0: 1312 bytes a token, 1.561x, to be expected 9.80%".
std::string AnswerText(const std::optional<Answer>& answer);
const Fields<Answer>& AnswerFields();

// The part "savings" of the document.
struct SavingsReport {
  const Runs& runs;
  const AdviceRequest& request;
  const Savings& savings;
  const std::vector<SavingRow>& rows;
};
const Fields<SavingsReport>& SavingsFields();
// Adds the picture and the table to a page.
void AddSavings(const AdviceRequest& request, const Savings& savings,
                const std::vector<SavingRow>& rows, report::Page& page);
// The table "choices" of the chosen point's kvtool.h2o-plan/1.
std::vector<UnitChoice> ChosenChoices(const Advice& advice, const Savings& savings);
// "q8_0" and the like of a measured layer of the chosen point; the cache's own where it stays.
std::string TypeOfLayer(const Runs& runs, const Savings& savings, size_t layer, bool is_key);

}  // namespace kv::advise
