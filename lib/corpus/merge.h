// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by merge.cc, merge_report.cc, spill.cc

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/base/descriptor.h"
#include "lib/corpus/corpus.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv::corpus {

// Bytes that are appended and read back. Beyond `memory` they go to an unnamed file in TMPDIR.
class Spill {
 public:
  explicit Spill(size_t memory = size_t{1} << 20) : memory_(memory) {}

  // Throws kWriteFailed.
  void Append(std::string_view bytes);
  uint64_t size() const { return in_file_ + tail_.size(); }
  // Throws kReadFailed.
  void Read(uint64_t offset, char* to, size_t size) const;

 private:
  void Flush();

  const size_t memory_;
  Descriptor descriptor_;
  uint64_t in_file_ = 0;
  std::string tail_;  // bytes not yet in the file
};

// Reads a range of a spill in order.
class SpillReader {
 public:
  SpillReader(const Spill& spill, uint64_t begin, uint64_t end, size_t step = size_t{1} << 18)
      : spill_(&spill), next_(begin), end_(end), step_(step) {}

  bool more() const { return at_ < buffer_.size() || next_ < end_; }
  // Returns the next `size` bytes, valid until the next call. The range must have that many left.
  std::string_view Take(size_t size);

 private:
  const Spill* spill_;
  uint64_t next_, end_;  // unread range
  size_t step_, at_ = 0;
  std::string buffer_;
};

// Sorts any number of records by their bytes, within bounded memory.
class ExternalSorter {
 public:
  explicit ExternalSorter(size_t memory = size_t{32} << 20) : memory_(memory), spill_(0) {}

  void Add(std::string_view record);
  // Calls with all records in ascending order, equal ones as often as they were added. Ends the
  // sorter.
  void ForEach(const std::function<void(std::string_view)>& call);

 private:
  void Sort();
  void EndRun();
  void Merge(const std::function<void(std::string_view)>& call);

  const size_t memory_;
  std::string bytes_;
  std::vector<std::pair<uint64_t, uint32_t>> records_;  // offset in bytes_ and size
  Spill spill_;
  std::vector<std::pair<uint64_t, uint64_t>> runs_;  // sorted ranges of spill_
};

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
  std::string text;                  // the deciding reason, if the case did not pass
  std::vector<std::string> failing;  // rules: "measured_ratio >= 1.02"
};

struct MergedInput {
  std::string name, model, format;
  uint64_t bytes = 0;
  int exit_code = 0;
  std::string finding, text;  // its first error
  std::string verdict;        // empty if the command gives none
  std::string reason;         // reason for that verdict
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
  std::vector<MergedCase> cases;             // cases of a gate, in order of first occurrence
  std::vector<MergedGroup> groups;           // in order of first occurrence
  std::map<FigureKey, FigureExtent> figures;

  void ForEachInput(const std::function<void(const MergedInput&)>& call) const;
  MergedInput Input(uint64_t place) const;
  // Passes `call` the values in ascending order, equal ones in the order of names.
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

// The distribution of a figure over inputs.
struct Spread {
  FigureKey key;
  uint64_t count = 0;
  double mean = 0, deviation = 0, min = 0, p5 = 0, median = 0, p95 = 0, max = 0;
  // for ratios: the sum of all numerators over the sum of all denominators
  std::optional<double> weighted;
};
const Fields<Spread>& SpreadFields();

// A value far from the others.
struct Outlier {
  FigureKey key;
  std::string name;  // name of the input
  double value = 0, median = 0;
  std::string command;
};

// Inputs of one model and format, with the figures of whole caches.
struct GroupReport {
  MergedGroup group;
  std::vector<Spread> figures;
};

// A failed input. Without a text it has a negative verdict.
struct MergeFailure {
  std::string name;
  int exit_code = 0;
  std::string finding, text, command;
};

// The report of kvtool merge on a corpus, apart from its header and inputs.
struct MergeReport {
  const Merged* merged = nullptr;      // must outlive the report
  std::optional<std::string> verdict;  // over all inputs, if the command gives verdicts
  std::vector<Spread> figures;
  std::vector<GroupReport> groups;  // by model and format
  std::vector<Outlier> outliers;
  std::vector<MergeFailure> failures;
};
MergeReport MakeMergeReport(const Merged& merged);
const Fields<MergeReport>& MergeReportFields();

// Returns the number of each case's verdicts, and the rules that failed.
TextTable CaseTable(const MergeReport& report);
// Returns the spreads of whole caches.
TextTable FigureTable(std::span<const Spread> figures);
// Returns the table without one column.
TextTable Without(std::string_view column, TextTable table);

// Returns a page about a corpus: the gate's verdict, how figures are spread, by layer and by model,
// outliers and how to inspect them, and failures.
report::Page MergedPage(const MergeReport& report);
// Writes JUnit XML: one suite per input, with one test per case of a gate, or else one test.
void WriteMergedJunit(const Merged& merged, const std::function<void(std::string_view)>& write);

}  // namespace kv::corpus
