// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/corpus/results.h"
#include "lib/corpus/spill.h"

namespace kv::corpus {

// Identifies a figure that every input may have, such as the ratio of layer 3's K at level high.
struct FigureKey {
  std::string figure;  // "ratio", "output_error", ...; for a gate the metric
  std::string what;    // "level high", "h2o 0.5", "K q8_0, V q4_0"; for a gate the case
  std::string part;    // "all", "k", "v", "other"
  std::optional<uint64_t> layer;
  auto operator<=>(const FigureKey&) const = default;
};

struct FigureValue {
  double value = 0;
  uint64_t input = 0;  // index in the order of names
  uint32_t group = 0;  // index into Merged::groups
  // Numerator and denominator of a ratio, so that the ratio of all inputs together is exact.
  uint64_t original = 0, left = 0;
};

// A gate's verdict on one case of one input.
struct CaseVerdict {
  std::string name, status;          // pass, fail, not_run, inconclusive
  std::string text;                  // the deciding reason, unless it passed
  std::vector<std::string> failing;  // rules: "measured_ratio >= 1.02"
};

struct MergedInput {
  std::string name, model, format;
  uint64_t bytes = 0;
  int exit_code = 0;
  std::string finding, text;  // of its first error
  std::string verdict;        // empty if the command gives none
  std::string reason;         // of that verdict
  std::vector<CaseVerdict> cases;
};

// Inputs of one model and format.
struct MergedGroup {
  std::string model, format;
  uint64_t entries = 0;
};

// Counts of a gate case's verdicts and of the rules that failed.
struct MergedCase {
  std::string name;
  std::map<std::string, uint64_t> statuses, failing;
};

// A range of values of one figure in a spill.
struct FigureExtent {
  uint64_t begin = 0, count = 0;
};

// The results of all shards of a corpus, in the order of names, independent of the number of
// shards. Data per input lies in temporary files, so that memory does not grow with the corpus.
class Merged {
 public:
  ResultsHead head;  // without its shard
  uint64_t entries = 0, done = 0, negative = 0, failed = 0;
  int worst_exit_code = 0;
  std::map<std::string, uint64_t> verdicts;  // number of occurrences of each word
  std::vector<MergedCase> cases;             // of a gate, in order of first occurrence
  std::vector<MergedGroup> groups;           // in order of first occurrence
  std::map<FigureKey, FigureExtent> figures;

  void ForEachInput(const std::function<void(const MergedInput&)>& call) const;
  MergedInput Input(uint64_t place) const;
  // Calls with the values in ascending order, equal ones in the order of names.
  void ForEachValue(const FigureExtent& figure,
                    const std::function<void(const FigureValue&)>& call) const;
  double ValueAt(const FigureExtent& figure, uint64_t place) const;

 private:
  friend class Merger;
  void Take(const MergedInput& input);

  std::unique_ptr<Spill> inputs_ = std::make_unique<Spill>();
  std::unique_ptr<Spill> places_ = std::make_unique<Spill>();  // where each input ends in inputs_
  std::unique_ptr<Spill> values_ = std::make_unique<Spill>();
};

// Takes files of results one by one. Throws kInconsistent for a foreign or repeated shard, and
// names file and line of anything that is not a result.
class Merger {
 public:
  // Adds a file of any size; `passed` is called with the number of bytes processed.
  void Add(const std::string& file, std::string_view text,
           const std::function<void(size_t)>& passed = {});
  // Throws kMissingRecord for missing shards and results. To be called once.
  Merged Finish();

 private:
  struct ShardFile {
    std::string file;
    ResultsHead head;
    uint64_t results = 0;
  };

  void AddLine(const ResultsHead& head, uint32_t file, const nlohmann::ordered_json& line,
               size_t number);
  uint32_t AssignId(const FigureKey& key);
  void TakeInputs(Merged& merged, ExternalSorter& values);
  void RequireAll(const Merged& merged) const;

  std::map<uint32_t, ShardFile> shards_;
  std::vector<uint32_t> shard_of_file_;
  std::map<FigureKey, uint32_t> ids_;
  ExternalSorter lines_;
};

}  // namespace kv::corpus
