// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/study/corpus/results.h"

namespace kv::corpus {

// A figure that every input may have, such as the ratio of layer 3's K at level high.
struct FigureKey {
  std::string figure;  // "ratio", "output_error", ...
  std::string what;    // "level high", "h2o 0.5", "K q8_0, V q4_0"; of a gate the case
  std::string part;    // "all", "k", "v", "other"
  std::optional<uint64_t> layer;
  auto operator<=>(const FigureKey&) const = default;
};

struct FigureValue {
  size_t input = 0;  // index into Merged::inputs
  double value = 0;
  // Of a ratio: what it divides, so that the ratio of all inputs together is exact.
  uint64_t original = 0, left = 0;
};

struct MergedInput {
  std::string name, model, format;
  uint64_t bytes = 0;
  int exit_code = 0;
  nlohmann::ordered_json errors, verdict;  // verdict: null where the command gives none
};

// The results of all shards of a corpus, in the order of names: nothing of it tells how many shards
// there were.
struct Merged {
  ResultsHead head;  // without its shard
  std::vector<MergedInput> inputs;
  std::map<FigureKey, std::vector<FigureValue>> figures;
};

// Takes files of results one by one. Throws kInconsistent for a shard that is foreign or there
// twice.
class Merger {
 public:
  void Add(const std::string& file, std::string_view text);
  // Throws kMissingRecord for shards and results that are missing.
  Merged Finish();

 private:
  struct Taken {
    MergedInput input;
    std::vector<std::pair<FigureKey, FigureValue>> figures;
    std::string file;
  };
  struct ShardFile {
    std::string file;
    ResultsHead head;
    uint64_t results = 0;
  };

  void AddLine(const ResultsHead& head, const std::string& file, const nlohmann::ordered_json& line,
               size_t number, std::map<std::string, Taken>& of_file) const;

  std::map<uint32_t, ShardFile> shards_;
  std::map<std::string, Taken> taken_;
};

// How a figure is spread over inputs.
struct Spread {
  size_t count = 0;
  double mean = 0, deviation = 0, min = 0, p5 = 0, median = 0, p95 = 0, max = 0;
  std::optional<double> weighted;  // of ratios: all originals over all that is left
};
Spread SpreadOf(const std::vector<FigureValue>& values);

// Values far from the others, the farthest first, a few.
std::vector<FigureValue> OutliersOf(const std::vector<FigureValue>& values);

// What kvtool merge prints, beside its header and inputs.
nlohmann::ordered_json MergedJson(const Merged& merged);
// The command that shows one input as the run saw it.
std::string CommandFor(const Merged& merged, const std::string& name);
// "pass", "fail" or nothing: of all that have a verdict.
std::optional<std::string> VerdictOf(const Merged& merged);

}  // namespace kv::corpus
