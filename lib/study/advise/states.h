// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by states.cc and states_report.cc

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/progress.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/bench/contest.h"

// Advice on which saved states to keep when no run was recorded: the rows that they share, the
// sizes that compression levels leave, the states that were not used for long, and one
// recommendation.
namespace kv::advise {

// At most this many rows of a state are compared; later ones count as not shared.
constexpr uint64_t kMostComparedTokens = uint64_t{1} << 20;
// Returns how many tokens of each of `states` states are compared, so that all hashes of rows and
// ids take 1 GiB at most.
uint64_t MostComparedTokens(uint64_t states);

// Relation of a state's rows to those of the state that it shares most with. kAlike: the compared
// rows are equal, but bytes elsewhere differ.
enum class Kinship { kAlone, kBranches, kGrows, kContained, kSame, kAlike };

// A saved state: a file, or the folder of a dump.
struct SavedState {
  std::string name;
  uint64_t bytes = 0;
  std::optional<int64_t> written_s, read_s;  // seconds since 1970, as the file system states them
  std::string format, model, geometry;       // states of different geometry share nothing
  bool is_archive = false;                   // already compressed; its rows are not read
  uint64_t tokens = 0, kv_bytes = 0;
  // hashes of the first n rows of a late tensor, and of the first n token ids
  std::vector<uint64_t> rows, ids;

  // Set by CompareStates.
  Kinship kinship = Kinship::kAlone;
  std::string kin;             // name of the state that it shares most with; empty: none
  uint64_t shared_tokens = 0;  // rows in common with `kin`, from the first token on
  uint64_t stored_tokens = 0;  // rows that a store already has from other states
  uint64_t same_ids = 0;       // the most token ids in common with another state
  // another state begins with all of its K, V and ids; all bytes were compared
  bool contained = false;
  bool idle = false;

  uint64_t TokenBytes(uint64_t count) const { return tokens == 0 ? 0 : kv_bytes / tokens * count; }
};

// Reads the rows for later comparisons: one head of the last layer's V (or K), which depends on
// every earlier token and layer.
SavedState DescribeState(const Snapshot& snapshot, uint64_t most_compared = kMostComparedTokens);
// Finds what states have in common. After sorting by rows, each state's longest common beginning is
// with a neighbour, so a thousand states need no million comparisons. `holds` compares all bytes
// before a state counts as equal to another one or contained in it.
using HoldsState = std::function<bool(const SavedState& whole, const SavedState& part)>;
void CompareStates(std::vector<SavedState>& states, const HoldsState& holds);
// Returns true if `whole` begins with all rows of all layers of `part`, and with its token ids.
bool HoldsRows(const Snapshot& whole, const Snapshot& part);

// Takes K and V from the middle of the first, a middle and the last layer.
std::vector<ContestChunk> SampleState(const Snapshot& snapshot);
// Sampled chunks of the largest state of a geometry.
struct GeometrySample {
  std::string geometry;
  std::vector<ContestChunk> chunks;
};

// A compression level measured on the sample, and its estimated size for all states.
struct StatesLevel {
  std::string level;
  double ratio = 1;
  std::optional<double> encode_mb_per_s, decode_mb_per_s;
  uint64_t alone_bytes = 0, store_bytes = 0;
};

struct LeftOut {
  std::string name, why;
};

struct StatesAdvice {
  enum class Kind { kKeep, kCompress, kStore };
  std::vector<SavedState> states;
  std::vector<LeftOut> left_out;
  uint64_t idle_days = 0;
  bool knows_time = true;    // false: no age is known, as in deterministic runs
  std::string access_times;  // how the file system updates access times
  uint64_t sampled_states = 0, sampled_chunks = 0, sampled_bytes = 0;
  std::vector<StatesLevel> levels;
  Kind kind = Kind::kKeep;
  // Commands that carry out the advice, verify it, and then delete the originals; empty: nothing to
  // do.
  std::string command, verify_command, delete_command;
  std::optional<uint64_t> free_bytes;  // free space where the command writes
  uint64_t result_bytes = 0;

  uint64_t bytes() const;
  uint64_t shared_bytes() const;  // bytes that a store keeps only once
  uint64_t archive_bytes() const;
  uint64_t contained_states() const;
  uint64_t contained_bytes() const;
  uint64_t alike_states() const;
  uint64_t near_states() const;  // states that differ from another one only in their last tenth
  uint64_t recomputed_states() const;  // states with the token ids of another one, but other values
  uint64_t idle_states() const;
  uint64_t idle_bytes() const;
};

// Times the levels on the samples and estimates the size of all states: each geometry counts by its
// bytes of K and V, and geometries without a sample by the mean.
void MeasureLevels(const std::vector<GeometrySample>& samples, bool has_times, Progress* progress,
                   StatesAdvice& advice);
// Chooses between a store, archives and nothing, by the bytes that the default level leaves on
// disk.
void Decide(StatesAdvice& advice);

const Fields<StatesAdvice>& StatesFields();
// The sentences and tables of one screen.
struct StatesText {
  std::string head;
  TextTable states;
  std::vector<std::string> facts;
  std::string sample;  // what levels were measured on
  TextTable levels;
  std::string answer;
  std::vector<std::string> commands;  // commands that carry the advice out
};
StatesText DescribeStates(const StatesAdvice& advice, size_t most_states, size_t most_left_out);
report::Page StatesPage(const StatesAdvice& advice);

}  // namespace kv::advise
