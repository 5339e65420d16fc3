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

// Advice on which saved states to keep, where nobody has recorded a run: the rows that they share,
// the sizes that levels leave, the states that were not touched, and one thing to do.
namespace kv::advise {

// Tokens of a state whose rows are compared; later ones count as the state's own.
constexpr uint64_t kMostComparedTokens = uint64_t{1} << 20;
// As many of each of so many states: all hashes of rows and ids together take 1 GiB at most.
uint64_t MostComparedTokens(uint64_t states);

// Relation of a state's rows to those of the state that it shares most with. An alike state has the
// compared rows of the other, but other bytes elsewhere.
enum class Kinship { kAlone, kBranches, kGrows, kContained, kSame, kAlike };

// A saved state: a file, or the folder of a dump.
struct SavedState {
  std::string name;
  uint64_t bytes = 0;
  std::optional<int64_t> written_s, read_s;  // since 1970, as the file system says
  std::string format, model, geometry;       // states of different geometry share nothing
  bool is_archive = false;                   // compressed already; not looked into
  uint64_t tokens = 0, kv_bytes = 0;
  std::vector<uint64_t> rows, ids;  // hashes of the first n rows of a late tensor; of n token ids

  // Set by CompareStates.
  Kinship kinship = Kinship::kAlone;
  std::string kin;             // name of the state that it shares most with; empty: none
  uint64_t shared_tokens = 0;  // rows in common with that, from the first token on
  uint64_t stored_tokens = 0;  // of the rows before it in the store, what is not stored again
  uint64_t same_ids = 0;       // most token ids in common with another state
  bool contained = false;      // another state begins with all of its K, V and ids, compared whole
  bool idle = false;

  uint64_t TokenBytes(uint64_t count) const { return tokens == 0 ? 0 : kv_bytes / tokens * count; }
};

// Reads what later comparisons need: one head of the last layer's V (or K), on which every earlier
// token and layer has left its mark.
SavedState DescribeState(const Snapshot& snapshot, uint64_t most_compared = kMostComparedTokens);
// Finds what states have in common. Sorted by their rows, each state's longest common beginning is
// that with a neighbour, so a thousand states need no million comparisons. `holds` compares all
// bytes before a state is called the same as another one or contained in it.
using HoldsState = std::function<bool(const SavedState& whole, const SavedState& part)>;
void CompareStates(std::vector<SavedState>& states, const HoldsState& holds);
// Returns true if `whole` begins with all rows of all layers of `part`, and with its token ids.
bool HoldsRows(const Snapshot& whole, const Snapshot& part);

// Takes K and V from the middle of the first, a middle and the last layer.
std::vector<ContestChunk> SampleState(const Snapshot& snapshot);
// The chunks of the largest state of a geometry.
struct GeometrySample {
  std::string geometry;
  std::vector<ContestChunk> chunks;
};

// A level of compression on the sample, and what it would make of everything.
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
  bool knows_time = true;    // else no age is known, as of deterministic runs
  std::string access_times;  // how the file system keeps them
  uint64_t sampled_states = 0, sampled_chunks = 0, sampled_bytes = 0;
  std::vector<StatesLevel> levels;
  Kind kind = Kind::kKeep;
  // Does it, proves it, and then removes the originals; empty: nothing to do.
  std::string command, verify_command, delete_command;
  std::optional<uint64_t> free_bytes;  // where the command writes
  uint64_t result_bytes = 0;

  uint64_t bytes() const;
  uint64_t shared_bytes() const;  // that a store keeps once
  uint64_t archive_bytes() const;
  uint64_t contained_states() const;
  uint64_t contained_bytes() const;
  uint64_t alike_states() const;
  uint64_t near_states() const;        // differ from another in their last tenth alone
  uint64_t recomputed_states() const;  // same tokens as another, but other values
  uint64_t idle_states() const;
  uint64_t idle_bytes() const;
};

// Times the levels on the samples and says what they make of all states: each geometry counts by
// its bytes of K and V, and those without a sample by the mean.
void MeasureLevels(const std::vector<GeometrySample>& samples, bool has_times, Progress* progress,
                   StatesAdvice& advice);
// Chooses between a store, archives and nothing, by what the default level leaves on the disk.
void Decide(StatesAdvice& advice);

const Fields<SavedState>& SavedStateFields();
const Fields<StatesAdvice>& StatesFields();
// The sentences and tables of one screen.
struct StatesText {
  std::string head;
  TextTable states;
  std::vector<std::string> facts;
  TextTable levels;
  std::string answer;
  std::vector<std::string> commands;  // that carry it out
};
StatesText TextOf(const StatesAdvice& advice, size_t most_states, size_t most_left_out);
report::Page StatesPage(const StatesAdvice& advice);

}  // namespace kv::advise
