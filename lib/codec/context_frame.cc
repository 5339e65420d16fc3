// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/context_frame.h"

#include <fmt/format.h>

#include <algorithm>

namespace kv {
namespace {

// More symbols than this are sampled, by whole rows, to choose symbols and contexts.
constexpr uint64_t kSampledSymbols = 1 << 16;
// Finer contexts (mantissa bits of the value above) cost time and tables; only long frames pay for
// them.
constexpr uint64_t kFineContextSymbols = 1 << 15;

constexpr uint64_t kHeaderBytes = 4 + 4 + 4 + 4 + 4 * kRansLanes;

// The window of 31 exponents that leaves the fewest values outside; the lowest one of several.
SymbolShape ChooseWindow(ByteSpan values, bool bfloat, uint64_t& escapes) {
  SymbolShape shape{.bfloat = bfloat};
  escapes = 0;
  if (!bfloat) return shape;
  std::array<std::array<uint32_t, 256>, 4> partial{};
  const size_t count = values.size() / 2;
  const auto exponent = [&](size_t i) {
    return (LoadLE<uint16_t>(values.data() + 2 * i) >> 7) & 0xff;
  };
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) ++partial[lane][exponent(i + lane)];
  }
  for (; i < count; ++i) ++partial[0][exponent(i)];
  std::array<uint64_t, 257> below{};  // values with a smaller exponent
  for (size_t e = 0; e < 256; ++e) {
    below[e + 1] = below[e] + partial[0][e] + partial[1][e] + partial[2][e] + partial[3][e];
  }
  uint64_t most = below[32];  // base 0 also holds exponent 0, in field 0
  for (uint32_t base = 1; base <= 224; ++base) {
    const uint64_t inside = below[base + 32] - below[base + 1];
    if (inside <= most) continue;
    most = inside;
    shape.exponent_base = base;
  }
  escapes = count - most;
  return shape;
}

// Counts of symbols under the context of `context_shift` fewer bits of the symbol above.
void CountRows(const uint8_t* symbols, RansGrid grid, uint64_t row_step, uint32_t context_shift,
               uint8_t first, ContextCounts& counts) {
  for (uint64_t row = 0; row < grid.rows; row += row_step) {
    const uint8_t* in = symbols + row * grid.columns;
    if (row == 0) {
      uint32_t* under = counts.Of(first);
      for (size_t c = 0; c < grid.columns; ++c) ++under[in[c]];
      continue;
    }
    const uint8_t* above = in - grid.columns;
    for (size_t c = 0; c < grid.columns; ++c) ++counts.Of(above[c] >> context_shift)[in[c]];
  }
}

// The same counts with symbols (and contexts) cut to fewer bits.
ContextCounts Coarser(const ContextCounts& counts, uint32_t bits) {
  const uint32_t cut = counts.symbol_bits - bits;
  ContextCounts coarse(counts.contexts, bits);
  for (uint32_t context = 0; context < counts.contexts; ++context) {
    const uint32_t* from = counts.Of(context);
    uint32_t* to = coarse.Of(context);
    for (uint32_t s = 0; s < 1u << counts.symbol_bits; ++s) to[s >> cut] += from[s];
  }
  return coarse;
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

uint64_t ModelBytes(const ContextModel& model) {
  ByteWriter writer;
  WriteModel(model, SignedOrder(model.symbol_bits), writer);
  return writer.size();
}

uint64_t FrameBytes(const ContextModel& model, const ContextCounts& per_group, uint64_t scale,
                    uint64_t values, uint32_t raw_bits, uint64_t escapes) {
  uint64_t bits16 = 0;
  for (uint32_t g = 0; g < per_group.contexts; ++g) {
    bits16 += CodedBits16(per_group.Of(g), model.tables[g], 1u << model.symbol_bits);
  }
  return kHeaderBytes + ModelBytes(model) + bits16 * scale / 8 / 65536 +
         RawPlaneBytes(values, raw_bits) + escapes;
}

// The map of a model over contexts of `from_bits`, for contexts of more bits.
void RefineMap(ContextGroups& groups, uint32_t from_bits, uint32_t to_bits) {
  std::vector<uint8_t> fine(size_t{1} << to_bits);
  for (size_t context = 0; context < fine.size(); ++context)
    fine[context] = groups.group_of[context >> (to_bits - from_bits)];
  groups.group_of = std::move(fine);
}

// The map as the kernels index it: by any byte.
std::array<uint8_t, 256> TableOfByte(const ContextModel& model) {
  std::array<uint8_t, 256> table_of{};
  std::copy(model.table_of.begin(), model.table_of.end(), table_of.begin());
  return table_of;
}

struct Candidate {
  uint32_t symbol_bits = 6;
  ContextGroups groups;  // over contexts of symbol_bits
  uint64_t bytes = UINT64_MAX;
};

}  // namespace

ContextPlan PlanContext(ByteSpan values, bool bfloat, uint64_t rows, uint64_t columns,
                        ContextScratch& scratch) {
  const uint64_t count = rows * columns;
  KV_ASSERT(count * 2 == values.size() && count > 0);
  ContextPlan plan;
  plan.shape = ChooseWindow(values, bfloat, plan.escapes);
  const bool in_rows = rows > 1 && columns >= kRansLanes;
  plan.grid = in_rows ? RansGrid{rows, columns} : RansGrid{1, count};

  // Everything is decided on eight-bit symbols under six-bit contexts; narrower symbols are sums.
  plan.shape.symbol_bits = 8;
  scratch.symbols.resize(count);
  ToSymbols(values.data(), count, plan.shape, scratch.symbols.data());
  const uint64_t row_step = in_rows ? std::max<uint64_t>(1, count / kSampledSymbols) : 1;
  const auto sampled_rows = (plan.grid.rows + row_step - 1) / row_step;
  const uint64_t scale = std::max<uint64_t>(1, plan.grid.rows / sampled_rows);
  ContextCounts counts(64, 8);
  CountRows(scratch.symbols.data(), plan.grid, row_step, 2, 0, counts);
  ContextGroups groups{std::vector<uint8_t>(64), 1};
  if (in_rows)
    groups = MergeContexts(Coarser(counts, 6), SignedOrder(6), static_cast<uint32_t>(scale));

  Candidate best;
  const ContextCounts grouped = PerGroup(counts, groups);
  for (uint32_t bits = 6; bits <= 8; ++bits) {
    const ContextCounts per_group = Coarser(grouped, bits);
    Candidate candidate{bits, groups, 0};
    RefineMap(candidate.groups, 6, bits);
    const ContextModel model = MakeModel(candidate.groups, per_group);
    plan.shape.symbol_bits = bits;
    candidate.bytes =
        FrameBytes(model, per_group, scale, count, plan.shape.raw_bits(), plan.escapes);
    if (candidate.bytes < best.bytes) best = std::move(candidate);
  }
  if (in_rows && groups.groups > 1 && best.symbol_bits > 6 && count >= kFineContextSymbols) {
    const uint32_t bits = best.symbol_bits;
    ContextCounts fine(1u << bits, 8);
    CountRows(scratch.symbols.data(), plan.grid, row_step, 8 - bits, 0, fine);
    const ContextCounts narrow = Coarser(fine, bits);
    Candidate candidate{bits,
                        MergeContexts(narrow, SignedOrder(bits), static_cast<uint32_t>(scale)), 0};
    const ContextCounts per_group = PerGroup(narrow, candidate.groups);
    plan.shape.symbol_bits = bits;
    candidate.bytes = FrameBytes(MakeModel(candidate.groups, per_group), per_group, scale, count,
                                 plan.shape.raw_bits(), plan.escapes);
    if (candidate.bytes < best.bytes) best = std::move(candidate);
  }

  // Exact counts for the tables that were chosen.
  plan.shape.symbol_bits = best.symbol_bits;
  if (best.groups.groups == 1) plan.grid = {1, count};
  const uint32_t shift = 8 - best.symbol_bits;
  for (uint8_t& symbol : scratch.symbols) symbol = static_cast<uint8_t>(symbol >> shift);
  ContextCounts exact(best.groups.groups, best.symbol_bits);
  const std::vector<uint8_t>& group_of = best.groups.group_of;
  const uint8_t* symbols = scratch.symbols.data();
  uint32_t* first = exact.Of(group_of[0]);
  for (size_t c = 0; c < plan.grid.columns; ++c) ++first[symbols[c]];
  for (size_t i = plan.grid.columns; i < count; ++i)
    ++exact.Of(group_of[symbols[i - plan.grid.columns]])[symbols[i]];
  plan.model = MakeModel(best.groups, exact);
  plan.bytes = FrameBytes(plan.model, exact, 1, count, plan.shape.raw_bits(), plan.escapes);
  return plan;
}

void EncodeContext(ByteSpan values, const ContextPlan& plan, ContextScratch& scratch, Bytes& out) {
  const size_t count = values.size() / 2;
  scratch.symbols.resize(count);
  ToSymbols(values.data(), count, plan.shape, scratch.symbols.data());
  MakeEncoderSymbols(plan.model, scratch.encoder_symbols);
  const std::array<uint8_t, 256> table_of = TableOfByte(plan.model);
  scratch.words.resize(count);
  RansStates states;
  uint16_t* end = scratch.words.data() + count;
  const uint16_t* begin =
      RansEncode(scratch.symbols.data(), plan.grid, {.table_of = table_of.data()},
                 scratch.encoder_symbols.data(), scratch.words.data(), end, states);
  ByteWriter frame;
  frame.U8(static_cast<uint8_t>(plan.shape.symbol_bits));
  frame.U8(static_cast<uint8_t>(plan.shape.exponent_base));
  frame.U16(0);
  frame.U32(static_cast<uint32_t>(plan.grid.rows));
  frame.U32(static_cast<uint32_t>(plan.grid.columns));
  frame.U32(static_cast<uint32_t>(plan.escapes));
  if (plan.shape.has_escapes()) {
    const uint32_t field = 31u << (plan.shape.symbol_bits - 6);
    for (size_t i = 0; i < count; ++i) {
      if ((scratch.symbols[i] & field) == 0)
        frame.U8(static_cast<uint8_t>(LoadLE<uint16_t>(values.data() + 2 * i) >> 7));
    }
  }
  WriteModel(plan.model, SignedOrder(plan.shape.symbol_bits), frame);
  const size_t planes_at = frame.size();
  frame.Pad(RawPlaneBytes(count, plan.shape.raw_bits()));
  PackRawBits(values.data(), count, plan.shape.raw_bits(), frame.data() + planes_at);
  for (const uint32_t state : states) frame.U32(state);
  frame.Append(
      ByteSpan(reinterpret_cast<const std::byte*>(begin), reinterpret_cast<const std::byte*>(end)));
  out = frame.Release();
}

void DecodeContext(ByteSpan frame, bool bfloat, std::span<std::byte> values,
                   ContextScratch& scratch) {
  ByteReader reader(frame);
  const size_t count = values.size() / 2;
  SymbolShape shape{.bfloat = bfloat};
  shape.symbol_bits = reader.U8("symbol bits");
  shape.exponent_base = reader.U8("exponent base");
  const uint32_t reserved = reader.U16("reserved");
  const RansGrid grid{reader.U32("rows"), reader.U32("columns")};
  const uint32_t escape_count = reader.U32("escape count");
  if (shape.symbol_bits < 6 || shape.symbol_bits > 8 ||
      shape.exponent_base > (bfloat ? 224u : 0u) || reserved != 0) {
    throw Error(Finding::kBadFrame, "the symbol shape is impossible").At(0);
  }
  if (uint64_t{grid.rows} * grid.columns != count || (grid.rows > 1 && grid.columns < kRansLanes) ||
      values.size() % 2 != 0) {
    throw Error(Finding::kBadFrame, fmt::format("{} rows of {} values, expected {} values",
                                                grid.rows, grid.columns, count))
        .At(4);
  }
  const ByteSpan escapes = reader.Take(escape_count, "escapes");
  const ContextModel model = ReadModel(reader, shape.symbol_bits, SignedOrder(shape.symbol_bits));
  const ByteSpan planes = reader.Take(RawPlaneBytes(count, shape.raw_bits()), "raw bits");
  RansStates states;
  for (uint32_t& state : states) state = reader.U32("lane state");
  const uint64_t words_at = reader.offset();
  const ByteSpan stream = reader.Take(reader.remaining(), "words");

  // Words may lie at an odd address.
  scratch.words.resize(stream.size() / 2 + kRansLanes);
  std::memcpy(scratch.words.data(), stream.data(), stream.size() / 2 * 2);
  MakeSlots(model, scratch.slots);
  const std::array<uint8_t, 256> table_of = TableOfByte(model);
  scratch.symbols.resize(count);
  const size_t used =
      RansDecode(scratch.symbols.data(), grid, {.table_of = table_of.data()}, scratch.slots.data(),
                 scratch.words.data(), stream.size() / 2, states);
  if (used * 2 != stream.size() ||
      std::any_of(states.begin(), states.end(), [](uint32_t state) { return state != kRansLow; })) {
    throw Error(Finding::kBadPayload, "the coded symbols do not end where they should")
        .At(words_at);
  }
  if (!FromSymbols(scratch.symbols.data(), count, shape,
                   reinterpret_cast<const uint8_t*>(escapes.data()), escapes.size(), planes.data(),
                   values.data())) {
    throw Error(Finding::kBadPayload, "the number of escapes does not fit the symbols").At(12);
  }
}

}  // namespace kv
