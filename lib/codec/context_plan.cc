// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// How a grid of half floats is best coded in context: symbol width, exponent window, tables.
#include <algorithm>

#include "lib/codec/context_frame.h"

namespace kv {
namespace {

// More symbols than this are sampled, by whole rows, to choose symbols and contexts.
constexpr uint64_t kSampledSymbols = 1 << 16;
// Finer contexts (mantissa bits of the value above) cost time and tables; only long frames pay for
// them.
constexpr uint64_t kFineContextSymbols = 1 << 15;
// Low bytes hardly ever differ from noise; a few thousand show it.
constexpr uint64_t kSampledLow = 1 << 12;

constexpr uint64_t kHeaderBytes = 4 + 4 + 4 + 4 + 4 * kRansLanes;

// Eight-bit symbols of a grid; narrower ones are their upper bits.
struct Grid {
  const uint8_t* symbols;
  RansGrid size;
};
using ContextMap = std::array<uint32_t, 256>;  // by the eight-bit symbol above

// Counts symbols of 8 - cut bits in every row_step-th row from first_row on; row 0 is under a row
// of symbol 0. Two tables by turns: the same cell twice in a row would wait for itself.
ContextCounts Count(const Grid& grid, uint64_t first_row, uint64_t row_step,
                    const ContextMap& context_of, uint32_t contexts, uint32_t cut) {
  ContextCounts even(contexts, 8 - cut), odd(contexts, 8 - cut);
  ContextMap at;
  for (size_t s = 0; s < at.size(); ++s) at[s] = context_of[s] << (8 - cut);
  const size_t columns = grid.size.columns;
  for (uint64_t row = first_row; row < grid.size.rows; row += row_step) {
    const uint8_t* in = grid.symbols + row * columns;
    if (row == 0) {
      for (size_t c = 0; c < columns; ++c) ++(c % 2 ? odd : even).counts[at[0] + (in[c] >> cut)];
      continue;
    }
    const uint8_t* above = in - columns;
    size_t c = 0;
    for (; c + 2 <= columns; c += 2) {
      ++even.counts[at[above[c]] + (in[c] >> cut)];
      ++odd.counts[at[above[c + 1]] + (in[c + 1] >> cut)];
    }
    if (c < columns) ++even.counts[at[above[c]] + (in[c] >> cut)];
  }
  for (size_t i = 0; i < even.counts.size(); ++i) even.counts[i] += odd.counts[i];
  return even;
}

// Sums the counts of the contexts of each group.
ContextCounts PerGroup(const ContextCounts& counts, const ContextGroups& groups) {
  ContextCounts sums(groups.groups, counts.symbol_bits);
  for (uint32_t context = 0; context < counts.contexts; ++context) {
    const uint32_t* from = counts.Of(context);
    uint32_t* to = sums.Of(groups.group_of[context]);
    for (uint32_t s = 0; s < 1u << counts.symbol_bits; ++s) to[s] += from[s];
  }
  return sums;
}

// Of contexts given by the upper bits of the symbol above, all or (in groups) merged.
ContextMap MapOf(uint32_t context_bits, const ContextGroups* groups) {
  ContextMap map;
  for (uint32_t s = 0; s < map.size(); ++s) {
    const uint32_t context = s >> (8 - context_bits);
    map[s] = groups == nullptr ? context : groups->group_of[context];
  }
  return map;
}

// The map over contexts of 6 bits, for contexts of more.
void RefineMap(ContextGroups& groups, uint32_t to_bits) {
  std::vector<uint8_t> fine(size_t{1} << to_bits);
  for (size_t context = 0; context < fine.size(); ++context)
    fine[context] = groups.group_of[context >> (to_bits - 6)];
  groups.group_of = std::move(fine);
}

// What contexts can save at most, in bits: the information that they have on symbols, less what so
// few samples overstate it by.
uint64_t ContextGainBits(const ContextCounts& joint) {
  std::vector<uint32_t> symbols(size_t{1} << joint.symbol_bits);
  uint64_t conditional = 0;
  int64_t cells = 0, contexts = 0, present = 0;
  for (uint32_t context = 0; context < joint.contexts; ++context) {
    const uint32_t* row = joint.Of(context);
    conditional += EntropyBits16(row, static_cast<uint32_t>(symbols.size()));
    uint32_t any = 0;
    for (size_t s = 0; s < symbols.size(); ++s) {
      symbols[s] += row[s];
      cells += row[s] != 0;
      any |= row[s];
    }
    contexts += any != 0;
  }
  for (const uint32_t n : symbols) present += n != 0;
  // A plug-in entropy is low by 0.72 bit for each free parameter.
  const int64_t bias = (cells - contexts - present + 1) * 47274;
  const auto gain =
      static_cast<int64_t>(EntropyBits16(symbols.data(), static_cast<uint32_t>(symbols.size()))) -
      static_cast<int64_t>(conditional) - bias;
  return gain > 0 ? static_cast<uint64_t>(gain) / 65536 : 0;
}

struct Candidate {
  uint32_t symbol_bits = 6;
  ContextGroups groups;  // over contexts of symbol_bits
  bool fine = false;     // groups are not those of six-bit contexts
  uint64_t bytes = UINT64_MAX;
};

}  // namespace

SymbolShape ChooseWindow(const HalfSurvey& survey, uint64_t& escapes) {
  SymbolShape shape{.bfloat = survey.bfloat};
  escapes = 0;
  if (!survey.bfloat) return shape;
  std::array<uint64_t, 257> below{};  // values with a smaller exponent
  for (size_t e = 0; e < 256; ++e) below[e + 1] = below[e] + survey.high[e];
  // Base 0 has no escapes, since its field 0 is exponent 0.
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
  escapes = below[256] - most;
  return shape;
}

HalfSurvey SurveyHalves(ByteSpan values, bool bfloat, bool every) {
  HalfSurvey survey{.bfloat = bfloat};
  const size_t count = values.size() / 2;
  std::array<std::array<uint32_t, 256>, 4> partial{};
  const uint32_t shift = bfloat ? 7 : 8;
  const auto high = [&](size_t i) {
    return (LoadLE<uint16_t>(values.data() + 2 * i) >> shift) & 0xff;
  };
  // Odd, lest it fall in with a row.
  const size_t high_step = every ? 1 : count / kSampledSymbols | 1;
  survey.exact = high_step == 1;
  size_t i = 0, looked = 0;
  for (; i + 3 * high_step < count; i += 4 * high_step, looked += 4) {
    for (size_t lane = 0; lane < 4; ++lane) ++partial[lane][high(i + lane * high_step)];
  }
  for (; i < count; i += high_step, ++looked) ++partial[0][high(i)];
  for (size_t b = 0; b < 256; ++b) {
    survey.high[b] = partial[0][b] + partial[1][b] + partial[2][b] + partial[3][b];
  }
  survey.high_bytes = EntropyBits16(survey.high.data(), 256) / 8 / 65536 * count / looked;

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

std::optional<ContextPlan> PlanContext(ByteSpan values, const HalfSurvey& survey, uint64_t rows,
                                       uint64_t columns, uint64_t to_beat,
                                       ContextScratch& scratch) {
  const uint64_t count = rows * columns;
  KV_ASSERT(count * 2 == values.size() && count > 0);
  ContextPlan plan;
  plan.shape = ChooseWindow(survey, plan.escapes);
  plan.shape.symbol_bits = 8;  // everything is decided on these
  const bool in_rows = rows > 1 && columns >= kRansLanes;
  plan.grid = in_rows ? RansGrid{rows, columns} : RansGrid{1, count};
  const uint64_t row_step = in_rows ? std::max<uint64_t>(1, count / kSampledSymbols) : 1;
  scratch.symbols.resize(count);
  const Grid grid{scratch.symbols.data(), plan.grid};
  const auto make_symbols = [&](uint64_t first_row, uint64_t row_count) {
    const uint64_t begin = first_row * plan.grid.columns, n = row_count * plan.grid.columns;
    ToSymbols(values.data() + 2 * begin, n, plan.shape, scratch.symbols.data() + begin);
  };

  ContextGroups groups{std::vector<uint8_t>(64), 1};
  uint64_t scale = 1;
  if (in_rows) {
    uint64_t sampled = 0;
    for (uint64_t row = 1; row < rows; row += row_step, ++sampled) {
      if (row_step > 1) make_symbols(row - 1, 2);
    }
    if (row_step == 1) make_symbols(0, rows);
    scale = std::max<uint64_t>(1, rows / sampled);
    const ContextCounts joint = Count(grid, 1, row_step, MapOf(6, nullptr), 64, 2);
    const uint64_t gain = ContextGainBits(joint) / 8 * rows / sampled;
    if (kHeaderBytes + survey.high_bytes + count + plan.escapes > gain &&
        kHeaderBytes + survey.high_bytes + count + plan.escapes - gain > to_beat) {
      return std::nullopt;
    }
    groups = MergeContexts(joint, SignedOrder(6), static_cast<uint32_t>(scale));
    if (survey.bfloat && !survey.exact) {
      // Escapes must be counted, not estimated.
      plan.shape = ChooseWindow(SurveyHalves(values, survey.bfloat, true), plan.escapes);
      plan.shape.symbol_bits = 8;
    }
    if (row_step > 1 || !survey.exact) make_symbols(0, rows);
  } else {
    if (kHeaderBytes + survey.high_bytes + count + plan.escapes > to_beat) return std::nullopt;
    if (survey.bfloat && !survey.exact) {
      plan.shape = ChooseWindow(SurveyHalves(values, survey.bfloat, true), plan.escapes);
      plan.shape.symbol_bits = 8;
    }
    make_symbols(0, 1);
  }

  const auto frame_bytes = [&](uint32_t bits, uint64_t coded) {
    plan.shape.symbol_bits = bits;
    return kHeaderBytes + coded + RawPlaneBytes(count, plan.shape.raw_bits()) + plan.escapes;
  };
  Candidate best;
  const ContextCounts grouped = Count(grid, 0, row_step, MapOf(6, &groups), groups.groups, 0);
  for (uint32_t bits = 6; bits <= 8; ++bits) {
    const uint64_t bytes = frame_bytes(bits, CostBytes(Coarser(grouped, bits), scale));
    if (bytes >= best.bytes) continue;
    best = {bits, groups, false, bytes};
    RefineMap(best.groups, bits);
  }
  if (groups.groups > 1 && best.symbol_bits > 6 && count >= kFineContextSymbols) {
    const uint32_t bits = best.symbol_bits;
    const ContextCounts joint =
        Count(grid, 1, row_step, MapOf(bits, nullptr), 1u << bits, 8 - bits);
    Candidate fine{bits, MergeContexts(joint, SignedOrder(bits), static_cast<uint32_t>(scale)),
                   true, 0};
    fine.bytes = frame_bytes(bits, CostBytes(PerGroup(joint, fine.groups), scale));
    if (fine.bytes < best.bytes) best = std::move(fine);
  }

  // Exact counts for the tables that were chosen.
  plan.shape.symbol_bits = best.symbol_bits;
  const ContextCounts exact = row_step == 1 && !best.fine
                                  ? Coarser(grouped, best.symbol_bits)
                                  : Count(grid, 0, 1, MapOf(best.symbol_bits, &best.groups),
                                          best.groups.groups, 8 - best.symbol_bits);
  if (best.groups.groups == 1) plan.grid = {1, count};
  plan.model = MakeModel(best.groups, exact);
  uint64_t bits16 = 0;
  for (uint32_t g = 0; g < exact.contexts; ++g) {
    bits16 += CodedBits16(exact.Of(g), plan.model.tables[g], 1u << best.symbol_bits);
  }
  ByteWriter model;
  WriteModel(plan.model, SignedOrder(best.symbol_bits), model);
  plan.bytes = frame_bytes(best.symbol_bits, model.size() + bits16 / 8 / 65536);
  if (plan.bytes >= to_beat) return std::nullopt;
  return plan;
}

}  // namespace kv
