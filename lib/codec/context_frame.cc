// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/context_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lib/codec/frame_parts.h"

namespace kv {
namespace {

// The map as the kernels index it: by any byte.
std::array<uint8_t, 256> TableOfByte(const ContextModel& model) {
  std::array<uint8_t, 256> table_of{};
  std::copy(model.table_of.begin(), model.table_of.end(), table_of.begin());
  return table_of;
}

}  // namespace

void EncodeContext(ByteSpan values, const ContextPlan& plan, ContextScratch& scratch, Bytes& out) {
  const size_t count = values.size() / 2;
  scratch.symbols.resize(count);
  ToSymbols(values.data(), count, plan.shape, scratch.symbols.data());
  MakeEncoderSymbols(plan.model, scratch.encoder_symbols);
  const std::array<uint8_t, 256> table_of = TableOfByte(plan.model);
  scratch.words.resize(count + kRansRoom);
  RansGrid grid = plan.grid;
  grid.lanes = RansLanesFor(grid);
  RansStates states;
  uint16_t* end = scratch.words.data() + count + kRansRoom;
  const uint16_t* begin = RansEncode(scratch.symbols.data(), grid, {.table_of = table_of.data()},
                                     scratch.encoder_symbols.data(), end, states);
  ByteWriter head;
  head.U8(SymbolsAndLanes(plan.shape, grid));
  head.U8(static_cast<uint8_t>(plan.shape.exponent_base));
  head.U16(0);
  head.U32(static_cast<uint32_t>(plan.grid.rows));
  head.U32(static_cast<uint32_t>(plan.grid.columns));
  head.U32(static_cast<uint32_t>(plan.escapes));
  if (plan.escapes > 0) AppendEscapes(values, scratch.symbols.data(), plan.shape, head);
  head.Append(plan.stored_model);
  AppendFrame(head, {values, plan.shape, {states.data(), grid.lanes}, {begin, end}}, out);
}

void DecodeContext(ByteSpan frame, bool bfloat, std::span<std::byte> values,
                   ContextScratch& scratch) {
  ByteReader reader(frame);
  const size_t count = values.size() / 2;
  SymbolShape shape{.bfloat = bfloat};
  RansGrid grid;
  ReadSymbolsAndLanes(reader, shape, grid);
  shape.exponent_base = reader.U8("exponent base");
  if (reader.U16("reserved") != 0) throw Error(Finding::kBadFrame, "reserved field is not 0").At(2);
  grid.rows = reader.U32("rows");
  grid.columns = reader.U32("columns");
  const uint32_t escape_count = reader.U32("escape count");
  CheckGrid(shape, grid, values.size());
  const ByteSpan escapes = reader.Take(escape_count, "escapes");
  const ContextModel model = ReadModel(reader, shape.symbol_bits, SignedOrder(shape.symbol_bits));
  const CodedPart coded = ReadCoded(reader, shape, grid, frame.size());

  MakeSlots(model, scratch.slots);
  const std::array<uint8_t, 256> table_of = TableOfByte(model);
  scratch.symbols.resize(count);
  RansStates states = coded.states;
  const size_t used =
      RansDecode(scratch.symbols.data(), grid, {.table_of = table_of.data()}, scratch.slots.data(),
                 coded.words.data(), coded.word_count(), states);
  CheckCodedEnd(coded, used, states);
  if (!FromSymbols(scratch.symbols.data(), count, shape,
                   reinterpret_cast<const uint8_t*>(escapes.data()), escapes.size(),
                   coded.planes.data(), values.data())) {
    throw Error(Finding::kBadPayload, "the number of escapes does not fit the symbols").At(12);
  }
}

uint8_t SymbolsAndLanes(const SymbolShape& shape, RansGrid grid) {
  const int doublings = std::countr_zero(grid.lanes) - std::countr_zero(kRansLanes);
  return static_cast<uint8_t>(shape.symbol_bits | static_cast<uint32_t>(doublings) << 4);
}

void ReadSymbolsAndLanes(ByteReader& reader, SymbolShape& shape, RansGrid& grid) {
  const uint32_t both = reader.U8("symbol bits and lanes");
  shape.symbol_bits = both & 15;
  grid.lanes = kRansLanes << (both >> 4);
  if (grid.lanes > kMaxRansLanes) {
    throw Error(Finding::kBadFrame, fmt::format("{} lanes", grid.lanes)).At(0);
  }
}

void AppendEscapes(ByteSpan values, const uint8_t* symbols, const SymbolShape& shape,
                   ByteWriter& frame) {
  const uint32_t field = 31u << (shape.symbol_bits - 6);
  for (size_t i = 0; i < values.size() / 2; ++i) {
    if ((symbols[i] & field) == 0)
      frame.U8(static_cast<uint8_t>(LoadLE<uint16_t>(values.data() + 2 * i) >> 7));
  }
}

uint64_t CodedOutput::bytes() const {
  return RawPlaneBytes(values.size() / 2, shape.raw_bits()) + states.size_bytes() +
         words.size_bytes();
}

void AppendFrame(const ByteWriter& head, const CodedOutput& coded, Bytes& out) {
  const size_t count = coded.values.size() / 2,
               plane_bytes = RawPlaneBytes(count, coded.shape.raw_bits());
  // At once: a frame that grows is copied.
  out.reserve(out.size() + head.size() + coded.bytes());
  const auto append = [&](ByteSpan bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); };
  append(head.bytes());
  out.resize(out.size() + plane_bytes);
  PackRawBits(coded.values.data(), count, coded.shape.raw_bits(),
              out.data() + out.size() - plane_bytes);
  append(std::as_bytes(coded.states));
  append(std::as_bytes(coded.words));
}

CodedPart ReadCoded(ByteReader& reader, const SymbolShape& shape, RansGrid grid,
                    uint64_t frame_bytes) {
  CodedPart coded;
  coded.planes = reader.Take(RawPlaneBytes(grid.rows * grid.columns, shape.raw_bits()), "raw bits");
  coded.states.fill(kRansLow);
  for (uint32_t& state : std::span(coded.states).first(grid.lanes)) {
    state = reader.U32("lane state");
    // Outside, kernels would not agree on what to do; no encoder goes there.
    if (state < kRansLow || state >= 1u << 31) {
      throw Error(Finding::kBadFrame, fmt::format("a lane state of {}", state))
          .At(reader.offset() - 4);
    }
  }
  coded.words_at = reader.offset();
  if (reader.remaining() % 2 != 0) {
    throw Error(Finding::kTrailingBytes, "half a word at the end").At(frame_bytes - 1);
  }
  coded.words = reader.Take(reader.remaining(), "words");
  return coded;
}

void CheckCodedEnd(const CodedPart& coded, size_t used, const RansStates& states) {
  if (used == coded.word_count() &&
      std::all_of(states.begin(), states.end(), [](uint32_t state) { return state == kRansLow; })) {
    return;
  }
  throw Error(Finding::kBadPayload, "the coded symbols do not end where they should")
      .At(coded.words_at);
}

void CheckGrid(const SymbolShape& shape, RansGrid grid, uint64_t value_bytes) {
  if (shape.symbol_bits < 6 || shape.symbol_bits > 8 ||
      shape.exponent_base > (shape.bfloat ? 224u : 0u)) {
    throw Error(Finding::kBadFrame, "the symbol shape is impossible").At(0);
  }
  if (uint64_t{grid.rows} * grid.columns * 2 != value_bytes ||
      (grid.rows > 1 && grid.columns < grid.lanes)) {
    throw Error(Finding::kBadFrame, fmt::format("{} rows of {} values, expected {} bytes",
                                                grid.rows, grid.columns, value_bytes))
        .At(4);
  }
}

}  // namespace kv
