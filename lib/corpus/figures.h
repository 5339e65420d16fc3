// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kv::corpus {

// A figure that every input may have, such as the ratio of layer 3's K at level high.
struct FigureKey {
  std::string figure;  // "ratio", "output_error", ...; of a gate the metric
  std::string what;    // "level high", "h2o 0.5", "K q8_0, V q4_0"; of a gate the case
  std::string part;    // "all", "k", "v", "other"
  std::optional<uint64_t> layer;
  auto operator<=>(const FigureKey&) const = default;
};

struct FigureValue {
  double value = 0;
  uint64_t input = 0;  // its place in the order of names
  uint32_t group = 0;  // place in Merged::groups
  // Of a ratio: what it divides, so that the ratio of all inputs together is exact.
  uint64_t original = 0, left = 0;
};

// How a case of a gate judged one input.
struct CaseVerdict {
  std::string name, status;          // pass, fail, not_run, inconclusive
  std::string text;                  // what decided it, where it did not pass
  std::vector<std::string> failing;  // rules: "measured_ratio >= 1.02"
};

// What one result line tells. Where a document lacks what its schema promises, exceptions of the
// JSON library say so.
std::vector<std::pair<FigureKey, FigureValue>> FiguresOf(const std::string& command,
                                                         const nlohmann::ordered_json& result);
std::vector<CaseVerdict> CasesOf(const nlohmann::ordered_json& result);

}  // namespace kv::corpus
