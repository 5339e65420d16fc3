// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/prev/prev.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lib/core/codec/prev/frame_parts.h"

namespace kv {
namespace {

// The map as the kernels index it: by any byte.
std::array<uint8_t, 256> TableOfByte(const ContextModel& model) {
  std::array<uint8_t, 256> table_of{};
  std::copy(model.table_of.begin(), model.table_of.end(), table_of.begin());
  return table_of;
}

// Symbols of eight bits to fewer.
void CutSymbols(uint32_t cut, std::vector<uint8_t>& symbols) {
  if (cut == 0) return;
  for (uint8_t& symbol : symbols) symbol = static_cast<uint8_t>(symbol >> cut);
}

// In a frame's head: lanes hide bytes.
constexpr uint16_t kHidden = 1;

}  // namespace

void EncodeContext(ByteSpan values, const ContextPlan& plan, ContextScratch& scratch, Bytes& out) {
  const size_t count = values.size() / 2;
  scratch.symbols.resize(count);
  if (plan.symbols_kept) {
    CutSymbols(8 - plan.shape.symbol_bits, scratch.symbols);
  } else {
    ToSymbols(values.data(), count, plan.shape, scratch.symbols.data());
  }
  MakeEncoderSymbols(plan.model, scratch.encoder_symbols);
  const std::array<uint8_t, 256> table_of = TableOfByte(plan.model);
  scratch.words.resize(count + kRansRoom);
  RansGrid grid = plan.grid;
  grid.lanes = RansLanesFor(grid, 1 << 14, 1 << 16);
  const size_t hidden = HiddenBytes(grid.lanes);
  const bool hides = RawPlaneBytes(count, plan.shape.raw_bits()) >= hidden;
  ByteWriter head;
  head.U8(SymbolsAndLanes(plan.shape, grid));
  head.U8(static_cast<uint8_t>(plan.shape.exponent_base));
  head.U16(hides ? kHidden : 0);
  head.U32(static_cast<uint32_t>(plan.grid.rows));
  head.U32(static_cast<uint32_t>(plan.grid.columns));
  head.U32(static_cast<uint32_t>(plan.escapes));
  if (plan.escapes > 0)
    AppendEscapes(values, scratch.symbols.data(), plan.shape, plan.escapes, head);
  head.Append(plan.stored_model);

  // At once: a buffer that grows is copied.
  out.reserve(out.size() + head.size() + plan.bytes + plan.bytes / 64);
  out.insert(out.end(), head.bytes().begin(), head.bytes().end());
  AppendPlanes(values, plan.shape, out);
  RansStates states;
  states.fill(kRansLow);
  if (hides) HideLast(hidden, out, states);
  uint16_t* end = scratch.words.data() + count + kRansRoom;
  const uint16_t* begin = RansEncode(scratch.symbols.data(), grid, {.table_of = table_of.data()},
                                     scratch.encoder_symbols.data(), end, states);
  AppendCoded({states.data(), grid.lanes}, {begin, end}, out);
}

void DecodeContext(ByteSpan frame, bool bfloat, std::span<std::byte> values,
                   ContextScratch& scratch) {
  ByteReader reader(frame);
  const size_t count = values.size() / 2;
  SymbolShape shape{.bfloat = bfloat};
  RansGrid grid;
  ReadSymbolsAndLanes(reader, shape, grid);
  shape.exponent_base = reader.U8("exponent base");
  const uint16_t hides = reader.U16("what states hide");
  if (hides > kHidden)
    throw Error(Finding::kBadFrame, fmt::format("the frame has the unknown form {}", hides)).At(2);
  grid.rows = reader.U32("rows");
  grid.columns = reader.U32("columns");
  const uint32_t escape_count = reader.U32("escape count");
  CheckGrid(shape, grid, values.size());
  const ByteSpan escapes = reader.Take(escape_count, "escapes");
  const ContextModel model =
      ReadModel(reader, shape.symbol_bits, SignedOrder(shape.symbol_bits), &scratch.arena);
  const CodedPart coded = ReadCoded(reader, shape, grid, hides != 0 ? HiddenBytes(grid.lanes) : 0);

  MakeSlots(model, scratch.slots);
  const std::array<uint8_t, 256> table_of = TableOfByte(model);
  scratch.symbols.resize(count);
  RansStates states = coded.states;
  const size_t used =
      RansDecode(scratch.symbols.data(), grid, {.table_of = table_of.data()}, scratch.slots.data(),
                 coded.words.data(), coded.word_count(), states);
  CheckCodedEnd(coded, used, states, hides != 0 ? kRansLow - 1 : 0);
  if (!FromSymbols(scratch.symbols.data(), count, shape,
                   reinterpret_cast<const uint8_t*>(escapes.data()), escapes.size(),
                   coded.planes.data(), values.data())) {
    throw Error(Finding::kBadPayload, "the number of escapes does not fit the symbols").At(12);
  }
  if (hides != 0) RevealHidden(coded, grid, states, shape.raw_bits(), values.data());
}

}  // namespace kv
