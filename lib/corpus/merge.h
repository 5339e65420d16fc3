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

struct MergedInput {
  std::string name, model, format;
  uint64_t bytes = 0;
  int exit_code = 0;
  std::string finding, text;  // of its first error
  std::string verdict;        // empty where the command gives none
  std::string reason;         // of that verdict
  std::vector<CaseVerdict> cases;
};

// Inputs of one model and format.
struct MergedGroup {
  std::string model, format;
  uint64_t entries = 0;
};

// How often a gate's case came to which verdict, and which rules failed.
struct MergedCase {
  std::string name;
  std::map<std::string, uint64_t> statuses, failing;
};

// The values of one figure, as they lie in a spill.
struct FigureExtent {
  uint64_t begin = 0, count = 0;
};

// The results of all shards of a corpus, in the order of names: nothing of it tells how many shards
// there were. What there is of every input lies in temporary files, so that memory does not grow
// with the corpus.
class Merged {
 public:
  ResultsHead head;  // without its shard
  uint64_t entries = 0, done = 0, negative = 0, failed = 0;
  int worst_exit_code = 0;
  std::map<std::string, uint64_t> verdicts;  // how often which word came
  std::vector<MergedCase> cases;             // of a gate, as they were met first
  std::vector<MergedGroup> groups;           // as they were met first
  std::map<FigureKey, FigureExtent> figures;

  void ForEachInput(const std::function<void(const MergedInput&)>& call) const;
  MergedInput Input(uint64_t place) const;
  // The least first, equal ones in the order of names.
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

// Takes files of results one by one. Throws kInconsistent for a shard that is foreign or there
// twice, and says which file and line is no result.
class Merger {
 public:
  // Files may be as large as they like: `passed` is called with the number of bytes that are done.
  void Add(const std::string& file, std::string_view text,
           const std::function<void(size_t)>& passed = {});
  // Throws kMissingRecord for shards and results that are missing. Once.
  Merged Finish();

 private:
  struct ShardFile {
    std::string file;
    ResultsHead head;
    uint64_t results = 0;
  };

  void AddLine(const ResultsHead& head, uint32_t file, const nlohmann::ordered_json& line,
               size_t number);
  uint32_t IdOf(const FigureKey& key);
  void TakeInputs(Merged& merged, ExternalSorter& values);
  void RequireAll(const Merged& merged) const;

  std::map<uint32_t, ShardFile> shards_;
  std::vector<uint32_t> shard_of_file_;
  std::map<FigureKey, uint32_t> ids_;
  ExternalSorter lines_;
};

}  // namespace kv::corpus
