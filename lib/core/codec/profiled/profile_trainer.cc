// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <unordered_map>

#include "lib/core/codec/prev/prev.h"
#include "lib/core/codec/profiled/profile.h"

namespace kv {
namespace {

// A symbol that comes up more rarely than once in so many of its table costs more as an entry of
// the table, which every value pays for, than as an exception.
constexpr uint64_t kRareOneIn = 40000;
// Repeated rows are listed where at least one row in so many repeats an earlier one.
constexpr uint64_t kRepeatsOneIn = 8;
constexpr uint64_t kMostRowBytes = 4 << 20;

constexpr uint32_t kProfileSymbolBits = 8;
constexpr size_t kProfileSymbols = 256;

}  // namespace

struct ProfileTrainer::State {
  ProfileEntry entry;
  ContextCounts joint{kProfileSymbols, kProfileSymbolBits};
  std::vector<uint32_t> by_column;  // [column << 8 | symbol]
  struct Seen {
    uint32_t count = 0, row = UINT32_MAX;  // its number in `repeated`
  };
  std::unordered_map<uint64_t, Seen> seen;  // by the rows' hashes
  Bytes repeated;
  std::vector<uint32_t> counts;  // of the rows in `repeated`
  uint64_t rows = 0, repeats = 0;
  std::vector<uint8_t> above, here;
};

ProfileTrainer::ProfileTrainer(uint32_t layer, bool is_value, DType dtype, uint32_t columns)
    : state_(std::make_unique<State>()) {
  ProfileEntry& entry = state_->entry;
  entry.layer = layer;
  entry.is_value = is_value;
  entry.dtype = dtype;
  entry.columns = columns;
  entry.shape = {dtype == DType::kBF16, kProfileSymbolBits, 0};
  state_->by_column.resize(size_t{columns} * kProfileSymbols);
}

ProfileTrainer::~ProfileTrainer() = default;
ProfileTrainer::ProfileTrainer(ProfileTrainer&&) noexcept = default;

void ProfileTrainer::Add(ByteSpan rows) {
  State& state = *state_;
  const uint64_t row_bytes = state.entry.row_bytes();
  if (rows.empty()) return;
  // By the first rows that are not all zeros.
  if (state.entry.shape.bfloat && !state.entry.shape.has_escapes()) {
    uint64_t escapes = 0;
    const SymbolShape window = ChooseWindow(SurveyHalves(rows, true, true), escapes);
    state.entry.shape.exponent_base = window.exponent_base;
    // Zeros before these tell nothing of where they have their exponents.
    if (window.has_escapes() && state.rows > 0) {
      std::ranges::fill(state.by_column, 0);
      std::ranges::fill(state.joint.counts, 0);
    }
  }
  state.above.clear();
  state.here.resize(state.entry.columns);
  const SymbolShape shape = state.entry.shape;
  for (uint64_t at = 0; at + row_bytes <= rows.size(); at += row_bytes) {
    const ByteSpan row = rows.subspan(at, row_bytes);
    ++state.rows;
    State::Seen& seen = state.seen[Hash64(row)];
    if (++seen.count > 1) {
      ++state.repeats;
      if (seen.row == UINT32_MAX && state.repeated.size() + row_bytes <= kMostRowBytes &&
          state.counts.size() < kMostProfileRows) {
        seen.row = static_cast<uint32_t>(state.counts.size());
        state.counts.push_back(0);
        state.repeated.insert(state.repeated.end(), row.begin(), row.end());
      }
      if (seen.row != UINT32_MAX) state.counts[seen.row] = seen.count;
      continue;
    }
    ToSymbols(row.data(), state.entry.columns, state.entry.shape, state.here.data());
    for (uint32_t c = 0; c < state.entry.columns; ++c) {
      const uint8_t symbol = state.here[c];
      if (!shape.CanDecode(symbol)) continue;  // an exception
      ++state.by_column[size_t{c} << 8 | symbol];
      if (!state.above.empty()) ++state.joint.Of(state.above[c])[symbol];
    }
    state.above = state.here;
  }
}

namespace {

// The symbol in the middle of those of each column: what best stands above a first row.
std::vector<uint8_t> MiddleOfColumns(const std::vector<uint32_t>& by_column, uint32_t columns) {
  const std::vector<uint16_t>& order = SignedOrder(kProfileSymbolBits);
  std::vector<uint8_t> middle(columns);
  for (uint32_t c = 0; c < columns; ++c) {
    const uint32_t* counts = by_column.data() + (size_t{c} << 8);
    uint64_t total = 0, below = 0;
    for (size_t s = 0; s < kProfileSymbols; ++s) total += counts[s];
    for (const uint16_t symbol : order) {
      below += counts[symbol];
      if (2 * below < total) continue;
      middle[c] = static_cast<uint8_t>(symbol);
      break;
    }
  }
  return middle;
}

// Rows by how often they came, the most frequent first.
Bytes ByFrequency(const Bytes& rows, const std::vector<uint32_t>& counts, uint64_t row_bytes) {
  std::vector<uint32_t> order(counts.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  Bytes sorted;
  sorted.reserve(rows.size());
  for (const uint32_t i : order) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
    sorted.insert(sorted.end(), begin, begin + static_cast<std::ptrdiff_t>(row_bytes));
  }
  return sorted;
}

}  // namespace

ProfileEntry ProfileTrainer::Finish() const {
  const State& state = *state_;
  ProfileEntry entry = state.entry;
  entry.first = MiddleOfColumns(state.by_column, entry.columns);
  // A single row has no row above: its own symbols then stand for what follows any.
  ContextCounts joint = state.joint;
  if (std::ranges::all_of(joint.counts, [](uint32_t n) { return n == 0; })) {
    for (size_t i = 0; i < state.by_column.size(); ++i)
      joint.Of(0)[i % kProfileSymbols] += state.by_column[i];
  }
  const ContextGroups groups = MergeContexts(joint, SignedOrder(kProfileSymbolBits), 1, false);
  ContextCounts merged(groups.groups, kProfileSymbolBits);
  for (uint32_t context = 0; context < kProfileSymbols; ++context) {
    for (uint32_t s = 0; s < kProfileSymbols; ++s)
      merged.Of(groups.group_of[context])[s] += joint.Of(context)[s];
  }
  uint64_t total = 0;
  for (uint32_t g = 0; g < groups.groups; ++g) {
    uint32_t* counts = merged.Of(g);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < kProfileSymbols; ++s) sum += counts[s];
    for (uint32_t s = 0; s < kProfileSymbols; ++s) {
      if (uint64_t{counts[s]} * kRareOneIn < sum) counts[s] = 0;
    }
    if (sum == 0) counts[entry.first[0]] = 1;
    total += sum;
  }
  entry.model = MakeModel(groups, merged);
  uint64_t bits16 = 0;
  for (uint32_t g = 0; g < groups.groups; ++g)
    bits16 += CodedBits16(merged.Of(g), entry.model.tables[g], kProfileSymbols);
  entry.expected = 1024 * entry.shape.raw_bits() +
                   static_cast<uint32_t>(total == 0 ? 0 : bits16 / total * 1024 / 65536);
  if (state.repeats * kRepeatsOneIn >= state.rows)
    entry.rows = ByFrequency(state.repeated, state.counts, entry.row_bytes());
  return entry;
}

}  // namespace kv
