// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/corpus/figures.h"
#include "lib/corpus/results.h"
#include "lib/corpus/spill.h"

namespace kv::corpus {

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

// "pass", "fail", "inconclusive" or nothing: of all that have a verdict.
std::optional<std::string> VerdictOf(const Merged& merged);
// The command that shows one input as the run saw it.
std::string CommandFor(const Merged& merged, const std::string& name);
// What kvtool merge prints, beside its header and inputs.
nlohmann::ordered_json MergedJson(const Merged& merged);
// JUnit XML: one suite for each input, with a test for each case of a gate, else one.
void WriteMergedJunit(const Merged& merged, const std::function<void(std::string_view)>& write);

}  // namespace kv::corpus
