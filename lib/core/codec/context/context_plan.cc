// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Plans how to code a grid of half floats in the context of the row above: symbol width, exponent
// window and tables. Everything is decided from samples and entropies; only the tables that win are
// counted exactly. A chunk whose rows do not predict each other, like most V, must be refused
// cheaply, so a sample of a few rows decides first.
#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/kernels/counts.h"

namespace kv {
namespace {

// Above this many symbols, whole rows are sampled to choose the symbol width and the contexts.
constexpr uint64_t kSampledSymbols = 1 << 16;
// Contexts that include mantissa bits of the value above cost time and tables, which only frames of
// at least this many symbols pay back.
constexpr uint64_t kFineContextSymbols = 1 << 16;
// Fine contexts are first collected into about this many clusters of neighbours. Starting from 128,
// 64 or 32 would encode 1 to 4 % faster for 0.1 to 0.2 % more bytes (docs/lab.md, "`high` at 32
// KiB").
constexpr uint64_t kFineClusters = 96;
// Number of symbols in the first, quick test whether the row above predicts anything.
constexpr uint64_t kFirstLookSymbols = 1 << 14;
// Bytes sampled to estimate entropy. Low bytes take fewer: they are almost always noise.
constexpr uint64_t kSampledHigh = 1 << 12, kSampledLow = 1 << 11;

// Header fields and lane states. Each state of four bytes hides 15 bits of payload (HiddenBytes),
// so two bytes are counted; short frames have sixteen lanes.
constexpr uint64_t kHeaderBytes = 4 + 4 + 4 + 4 + 2 * kRansLanes;

// A grid of eight-bit symbols; narrower symbols are their upper bits.
struct Grid {
  const uint8_t* symbols;
  RansGrid size;
};
using ContextMap = std::array<uint32_t, 256>;  // index: the eight-bit symbol above

// Counts symbols of symbol_bits by the context of the symbol above, in every row_step-th row except
// the first.
ContextCounts CountUnder(const Grid& grid, uint64_t row_step, const ContextMap& context_of,
                         uint32_t contexts, uint32_t symbol_bits, Arena* arena) {
  // Small grids use a single histogram: clearing and summing four would cost more than counting.
  constexpr uint64_t kFew = 1 << 15;
  const size_t columns = grid.size.columns, cells = size_t{contexts} << symbol_bits;
  // Otherwise two or four histograms in rotation, because equal neighbours in one would stall on
  // store-to-load forwarding; four only while all of them take at most 64 KiB.
  const size_t turns = grid.size.rows * columns / row_step < kFew ? 1 : cells > 4096 ? 2 : 4;
  ContextCounts counts(static_cast<uint32_t>(turns) * contexts, symbol_bits, arena);
  std::array<uint32_t, 256> base_of;
  for (size_t s = 0; s < base_of.size(); ++s) base_of[s] = context_of[s] << symbol_bits;
  uint32_t* sums = counts.counts.data();
  CountInContext(
      {grid.symbols, grid.size.rows, columns, row_step, static_cast<int>(8 - symbol_bits)},
      base_of.data(), turns, cells, sums);
  for (size_t turn = 1; turn < turns; ++turn) {
    const uint32_t* more = sums + turn * cells;
    for (size_t i = 0; i < cells; ++i) sums[i] += more[i];
  }
  counts.contexts = contexts;
  counts.counts.resize(cells);
  return counts;
}

// Counts by the upper context_bits of the symbol above.
ContextCounts CountJoint(const Grid& grid, uint64_t row_step, uint32_t context_bits,
                         uint32_t symbol_bits, Arena* arena) {
  ContextMap context_of;
  for (uint32_t s = 0; s < context_of.size(); ++s) context_of[s] = s >> (8 - context_bits);
  return CountUnder(grid, row_step, context_of, 1u << context_bits, symbol_bits, arena);
}

void CountFirstRow(const Grid& grid, uint32_t cut, uint32_t* counts) {
  uint64_t of[256] = {};
  CountBytes(reinterpret_cast<const std::byte*>(grid.symbols), grid.size.columns, of);
  for (uint32_t s = 0; s < 256; ++s) counts[s >> cut] += static_cast<uint32_t>(of[s]);
}

// Counts symbols in all rows; row 0 counts as below a row of symbol 0, as in the grammar.
ContextCounts CountAll(const Grid& grid, const ContextMap& context_of, uint32_t contexts,
                       uint32_t symbol_bits, Arena* arena) {
  ContextCounts counts = CountUnder(grid, 1, context_of, contexts, symbol_bits, arena);
  CountFirstRow(grid, 8 - symbol_bits, counts.Of(context_of[0]));
  return counts;
}

// Sums the counts over the contexts of each group.
ContextCounts SumPerGroup(const ContextCounts& counts, const ContextGroups& groups) {
  ContextCounts sums(groups.groups, counts.symbol_bits, counts.arena());
  const size_t symbols = size_t{1} << counts.symbol_bits;
  for (uint32_t context = 0; context < counts.contexts; ++context) {
    const uint32_t* from = counts.Of(context);
    uint32_t* to = sums.Of(groups.group_of[context]);
    for (size_t s = 0; s < symbols; ++s) to[s] += from[s];
  }
  return sums;
}

// Returns the group of each symbol above, given groups over its upper context_bits.
ContextMap MakeMap(const ContextGroups& groups, uint32_t context_bits) {
  ContextMap map;
  for (uint32_t s = 0; s < map.size(); ++s) map[s] = groups.group_of[s >> (8 - context_bits)];
  return map;
}

// Extends a map over six-bit contexts to contexts of to_bits, whose upper six bits decide.
void RefineMap(ContextGroups& groups, uint32_t to_bits) {
  ArenaVector<uint8_t> fine(size_t{1} << to_bits, groups.group_of.get_allocator());
  for (size_t context = 0; context < fine.size(); ++context)
    fine[context] = groups.group_of[context >> (to_bits - 6)];
  groups.group_of = std::move(fine);
}

// Returns an upper bound, in bits, of what contexts can save: the mutual information of symbol and
// context, less the bias of estimating it from few samples.
uint64_t ContextGainBits(const ContextCounts& joint) {
  const uint32_t symbol_count = 1u << joint.symbol_bits;
  std::array<uint32_t, 256> symbols{};
  for (uint32_t context = 0; context < joint.contexts; ++context) {
    const uint32_t* row = joint.Of(context);
    for (uint32_t s = 0; s < symbol_count; ++s) symbols[s] += row[s];
  }
  std::array<uint8_t, 256> present;
  size_t present_count = 0;
  for (uint32_t s = 0; s < symbol_count; ++s) {
    if (symbols[s] != 0) present[present_count++] = static_cast<uint8_t>(s);
  }
  uint64_t conditional = 0;
  int64_t cells = 0, contexts = 0;
  std::array<uint32_t, 256> row;
  for (uint32_t context = 0; context < joint.contexts; ++context) {
    uint32_t any = 0;
    for (size_t i = 0; i < present_count; ++i) {
      row[i] = joint.Of(context)[present[i]];
      cells += row[i] != 0;
      any |= row[i];
    }
    if (any == 0) continue;
    ++contexts;
    conditional += EntropyBits16(row.data(), static_cast<uint32_t>(present_count));
  }
  // The entropy of observed frequencies is too low by (K - 1) / (2 ln 2) = 0.72 (K - 1) bits for K
  // values in all (the Miller-Madow correction); 47274 is 0.72 in 16-bit fixed point.
  const int64_t bias = (cells - contexts - static_cast<int64_t>(present_count) + 1) * 47274;
  const auto gain = static_cast<int64_t>(EntropyBits16(symbols.data(), symbol_count)) -
                    static_cast<int64_t>(conditional) - bias;
  return gain > 0 ? static_cast<uint64_t>(gain) / 65536 : 0;
}

// Counts symbols whose exponent field is 0; for bf16 with a base these are escapes.
uint64_t CountEscapes(const ContextCounts& counts) {
  const uint32_t field = 31u << (counts.symbol_bits - 6);
  uint64_t escapes = 0;
  for (uint32_t context = 0; context < counts.contexts; ++context) {
    for (uint32_t s = 0; s < 1u << counts.symbol_bits; ++s) {
      if ((s & field) == 0) escapes += counts.Of(context)[s];
    }
  }
  return escapes;
}

struct Candidate {
  uint32_t symbol_bits = 6;
  ContextGroups groups;  // over contexts of symbol_bits
  bool fine = false;     // contexts include mantissa bits
  uint64_t bytes = UINT64_MAX;
};

}  // namespace

SymbolShape ChooseWindow(const HalfSurvey& survey, uint64_t& escapes) {
  SymbolShape shape{.form = survey.form};
  escapes = 0;
  if (!survey.form.bfloat) return shape;
  std::array<uint64_t, 257> below{};  // number of values with a smaller exponent
  for (size_t e = 0; e < 256; ++e) below[e + 1] = below[e] + survey.high[e];
  // With base 0, field 0 means exponent 0, so the lowest window has no escapes.
  const bool all_low = below[32] == below[256];
  if (all_low) return shape;
  uint64_t most = 0;
  shape.exponent_base = 1;
  for (uint32_t base = 1; base <= 224; ++base) {
    const uint64_t inside = below[base + 32] - below[base + 1];
    if (inside <= most) continue;
    most = inside;
    shape.exponent_base = base;
  }
  const uint32_t above = shape.exponent_base + 1;
  if (!survey.exact && above <= 224 && below[above + 32] - below[above + 1] == most) {
    shape.exponent_base = above;  // leaves room for a larger value that the sample missed
  }
  escapes = (below[256] - most) * survey.values / survey.looked;
  return shape;
}

HalfSurvey SurveyHalves(ByteSpan values, HalfForm form, bool every) {
  HalfSurvey survey{.form = form};
  const bool bfloat = form.bfloat;
  const size_t count = values.size() / 2;
  std::array<std::array<uint32_t, 256>, 4> partial{};
  const uint32_t shift = bfloat ? 7 : 8;
  const auto high = [&](size_t i) {
    const uint32_t value = LoadLE<uint16_t>(values.data() + 2 * i);
    if (form.byte_shift != 0) return (value >> 8 & 0x80) | (value >> form.byte_shift & 0x7f);
    return (value >> shift) & 0xff;
  };
  // An odd step is no multiple of a row's length, which is even.
  const size_t high_step = every ? 1 : count / kSampledHigh | 1;
  survey.exact = high_step == 1;
  size_t i = 0, looked = 0;
  for (; i + 3 * high_step < count; i += 4 * high_step, looked += 4) {
    // Four histograms in rotation: equal neighbours would stall on store-to-load forwarding.
    for (size_t lane = 0; lane < 4; ++lane) ++partial[lane][high(i + lane * high_step)];
  }
  for (; i < count; i += high_step, ++looked) ++partial[0][high(i)];
  for (size_t b = 0; b < 256; ++b) {
    survey.high[b] = partial[0][b] + partial[1][b] + partial[2][b] + partial[3][b];
  }
  survey.values = count;
  survey.looked = looked;
  if (bfloat && !survey.exact &&
      std::all_of(survey.high.begin() + 32, survey.high.end(), [](uint32_t n) { return n == 0; })) {
    // the lowest window has no escapes, so every value must be known to fit
    return SurveyHalves(values, form, true);
  }
  survey.high_bytes = EntropyBits16(survey.high.data(), 256) / 8 / 65536 * count / looked;
  if (form.byte_shift != 0) return survey;

  std::array<uint32_t, 256> low{};
  const size_t step = std::max<size_t>(1, count / kSampledLow);
  uint64_t sampled = 0, present = 0;
  for (i = 0; i < count; i += step, ++sampled) {
    const uint32_t value = LoadLE<uint16_t>(values.data() + 2 * i);
    ++low[bfloat ? (value << 1 | value >> 15) & 0xff : value & 0xff];
  }
  for (const uint32_t n : low) present += n != 0;
  const uint64_t bits16 = EntropyBits16(low.data(), 256) + (present - 1) * 47274;
  survey.low_bytes = std::min<uint64_t>(count, bits16 / 65536 * count / sampled / 8);
  return survey;
}

namespace {

// Plans one grid. Merge decides on six-bit contexts, or refuses; ChooseWidth and TryFineContexts
// compare candidates by their estimated bytes; Finish makes the tables of the best one.
class ContextPlanner {
 public:
  ContextPlanner(ByteSpan values, const HalfSurvey& survey, uint64_t rows, uint64_t columns,
                 uint64_t to_beat, ContextScratch& scratch)
      : values_(values),
        rows_(rows),
        count_(rows * columns),
        to_beat_(to_beat),
        is_bytes_(survey.form.byte_shift != 0),
        in_rows_(rows > 1 && columns >= kRansLanes),
        arena_(&scratch.arena),
        groups_{ArenaVector<uint8_t>(64, arena_), 1} {
    plan_.shape = ChooseWindow(survey, plan_.escapes);
    plan_.shape.symbol_bits = 8;  // everything is decided on 8-bit symbols
    plan_.grid = in_rows_ ? RansGrid{rows, columns} : RansGrid{1, count_};
    scratch.symbols.resize(count_);
    symbols_ = scratch.symbols.data();
    grid_ = {symbols_, plan_.grid};
    const uint64_t without =
        kHeaderBytes + survey.high_bytes + (is_bytes_ ? 0 : count_) + plan_.escapes;
    wanted_ = without > to_beat ? without - to_beat : 0;
  }

  std::optional<ContextPlan> Plan() {
    if (in_rows_) {
      if (!MergeRows()) return std::nullopt;
    } else {
      // Without rows there are no contexts, so a single table is used.
      if (wanted_ > 0) return std::nullopt;
      MakeSymbols(0, 1);
    }
    ChooseWidth();
    if (groups_.groups > 1 && best_.symbol_bits > 6 && count_ >= kFineContextSymbols)
      TryFineContexts();
    return Finish();
  }

 private:
  void MakeSymbols(uint64_t first_row, uint64_t row_count) {
    const uint64_t begin = first_row * grid_.size.columns, n = row_count * grid_.size.columns;
    ToSymbols(values_.data() + 2 * begin, n, plan_.shape, symbols_ + begin);
  }

  // Makes the symbols of every row_step-th row and of the row above each, and counts their pairs.
  ContextCounts CountSampledRows(uint64_t row_step, uint32_t symbol_bits) {
    if (row_step == 1) {
      MakeSymbols(0, rows_);
    } else {
      for (uint64_t row = 1; row < rows_; row += row_step) MakeSymbols(row - 1, 2);
    }
    return CountJoint(grid_, row_step, 6, symbol_bits, arena_);
  }

  uint64_t EstimateGain(const ContextCounts& joint, uint64_t row_step) const {
    return ContextGainBits(joint) / 8 * rows_ / CeilDiv(rows_ - 1, row_step);
  }

  // Merges contexts of the row above into groups. Returns false if they cannot save enough.
  bool MergeRows() {
    uint64_t first_gain = 0;
    const uint64_t first_step = std::max<uint64_t>(4, count_ / kFirstLookSymbols);
    if (wanted_ > 0 && first_step < rows_) {
      // Refuses most V after a few rows. An estimate from few rows is biased upwards and leaves out
      // the tables, so a low one is conclusive.
      first_gain = EstimateGain(CountSampledRows(first_step, 6), first_step);
      if (first_gain < wanted_) return false;
    }
    row_step_ = std::max<uint64_t>(1, count_ / kSampledSymbols);
    joint_ = CountSampledRows(row_step_, 8);
    const ContextCounts coarse = Coarser(*joint_, 6);
    // A first estimate of twice the needed gain needs no second check.
    if (first_gain < 2 * wanted_ && EstimateGain(coarse, row_step_) < wanted_) return false;
    groups_ = MergeContexts(coarse, SignedOrder(6), static_cast<uint32_t>(row_step_), false);
    MakeSkippedSymbols();
    return true;
  }

  // Makes the symbols of the rows that were not sampled.
  void MakeSkippedSymbols() {
    for (uint64_t row = 1; row_step_ > 1 && row < rows_; row += row_step_) {
      const uint64_t end = row + row_step_ < rows_ ? row + row_step_ - 1 : rows_;
      if (row + 1 < end) MakeSymbols(row + 1, end - row - 1);
    }
  }

  // Returns the size of the frame with symbols of `bits`, given that of tables and coded symbols.
  uint64_t FrameBytes(uint32_t bits, uint64_t coded) {
    plan_.shape.symbol_bits = bits;
    return kHeaderBytes + coded + RawPlaneBytes(count_, plan_.shape.raw_bits()) + plan_.escapes;
  }

  void ChooseWidth() {
    grouped_ = joint_ ? SumPerGroup(*joint_, groups_) : ContextCounts(1, 8, arena_);
    if (row_step_ == 1) CountFirstRow(grid_, 0, grouped_->Of(groups_.group_of[0]));
    for (uint32_t bits = is_bytes_ ? 8 : 6; bits <= 8; ++bits) {
      const uint64_t bytes = FrameBytes(bits, CostBytes(Coarser(*grouped_, bits), row_step_));
      if (bytes >= best_.bytes) break;
      best_ = {bits, groups_, false, bytes};
      RefineMap(best_.groups, bits);
    }
  }

  // Fine contexts are the upper bits of the symbol above, mantissa included, instead of sign and
  // exponent field alone.
  void TryFineContexts() {
    const uint32_t bits = best_.symbol_bits;
    const ContextCounts joint = CountJoint(grid_, row_step_, bits, 6, arena_);
    Candidate fine{bits,
                   MergeContexts(joint, SignedOrder(bits), static_cast<uint32_t>(row_step_), false,
                                 count_ / row_step_ / kFineClusters),
                   true, 0};
    const ContextCounts per_group =
        CountUnder(grid_, row_step_, MakeMap(fine.groups, bits), fine.groups.groups, bits, arena_);
    fine.bytes = FrameBytes(bits, CostBytes(per_group, row_step_));
    if (fine.bytes < best_.bytes) best_ = std::move(fine);
  }

  // The tables that won are made from exact counts, so that every symbol that occurs has a
  // frequency.
  std::optional<ContextPlan> Finish() {
    const uint32_t bits = best_.symbol_bits;
    plan_.shape.symbol_bits = bits;
    const ContextCounts exact =
        row_step_ == 1 && !best_.fine
            ? Coarser(*grouped_, bits)
            : CountAll(grid_, MakeMap(best_.groups, bits), best_.groups.groups, bits, arena_);
    if (plan_.shape.has_escapes()) plan_.escapes = CountEscapes(exact);
    if (best_.groups.groups == 1) plan_.grid = {1, count_};
    plan_.model = MakeModel(best_.groups, exact);
    uint64_t bits16 = 0;
    for (uint32_t g = 0; g < exact.contexts; ++g)
      bits16 += CodedBits16(exact.Of(g), plan_.model.tables[g], 1u << bits);
    ByteWriter model;
    WriteModel(plan_.model, SignedOrder(bits), model);
    plan_.stored_model = model.Release();
    plan_.bytes = FrameBytes(bits, plan_.stored_model.size() + bits16 / 8 / 65536);
    if (plan_.bytes >= to_beat_) return std::nullopt;
    plan_.symbols_kept = true;
    return std::move(plan_);
  }

  const ByteSpan values_;
  const uint64_t rows_, count_, to_beat_;
  const bool is_bytes_, in_rows_;
  Arena* const arena_;
  uint8_t* symbols_ = nullptr;
  Grid grid_{};
  ContextPlan plan_;
  uint64_t wanted_ = 0;    // bytes that contexts must save, so that the frame beats to_beat_
  uint64_t row_step_ = 1;  // every row_step_-th row is counted
  ContextGroups groups_;
  std::optional<ContextCounts> joint_, grouped_;
  Candidate best_;
};

}  // namespace

std::optional<ContextPlan> PlanContext(ByteSpan values, const HalfSurvey& survey, uint64_t rows,
                                       uint64_t columns, uint64_t to_beat,
                                       ContextScratch& scratch) {
  KV_ASSERT(rows * columns * 2 == values.size() && rows * columns > 0);
  return ContextPlanner(values, survey, rows, columns, to_beat, scratch).Plan();
}

}  // namespace kv
