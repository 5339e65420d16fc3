// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/study/advise/advice.h"
#include "lib/study/quantisation/stored_layer.h"

// Eviction, smaller types, and both at once, measured on the same rows and searched together.
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

  const Saving* OptionOf(const Choice& choice, size_t unit) const;
  double expected_loss() const { return searched.expected_loss(); }
};

// Whether queries and the cache's own types allow it; else why not.
std::string WhyNoTypes(const Runs& runs);
// Measures each pair of types in each layer, then the best candidates of the advice with the best
// pairs, each by a replay of the combination, and searches among all of them for what saves most
// within the request's limits. Throws as quantisation::StoreLayer.
Savings FindSavings(const Runs& runs, const AdviceRequest& request, const SavingsRequest& types,
                    const Advice& advice, ThreadPool& pool, Progress* progress = nullptr);

}  // namespace kv::advise
