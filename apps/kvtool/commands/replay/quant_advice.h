// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Chooses types of K and V by layer, and says what they cost and which flags set them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/fields/fields.h"
#include "lib/study/quantisation/replay.h"

namespace kv {

// Prints one line: size and loss of all layers together.
void PrintOutcome(Console& console, std::string_view what, const quantisation::Outcome& outcome,
                  const quantisation::ReplayResult& result);
// Returns warnings that a reader of the figures needs.
std::vector<std::string> QuantWarnings(const Snapshot& snapshot,
                                       const quantisation::ReplayRequest& request,
                                       const quantisation::ReplayResult& result);

// Limits on the types of all layers together.
struct QuantLimits {
  std::optional<double> max_kl;  // nats, calibrated
  uint64_t bytes = 0;            // per token in all layers; 0: no limit
};

// Chooses a pair of types for each layer.
quantisation::SearchResult SearchTypes(const QuantLimits& asked,
                                       const quantisation::ReplayRequest& request,
                                       const quantisation::ReplayResult& result);
// The part "advice" of the document.
struct QuantAdvice {
  const QuantLimits& asked;
  const quantisation::ReplayRequest& request;
  const quantisation::ReplayResult& result;
  const quantisation::SearchResult& found;
};
const Fields<QuantAdvice>& QuantAdviceFields();
void PrintAdvice(Console& console, const quantisation::ReplayRequest& request,
                 const quantisation::ReplayResult& result, const quantisation::SearchResult& found);

}  // namespace kv
