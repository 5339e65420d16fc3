// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/context_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
  scratch.words.resize(count + 1);
  RansStates states;
  uint16_t* end = scratch.words.data() + count + 1;
  const uint16_t* begin =
      RansEncode(scratch.symbols.data(), plan.grid, {.table_of = table_of.data()},
                 scratch.encoder_symbols.data(), end, states);
  ByteWriter frame;
  frame.U8(static_cast<uint8_t>(plan.shape.symbol_bits));
  frame.U8(static_cast<uint8_t>(plan.shape.exponent_base));
  frame.U16(0);
  frame.U32(static_cast<uint32_t>(plan.grid.rows));
  frame.U32(static_cast<uint32_t>(plan.grid.columns));
  frame.U32(static_cast<uint32_t>(plan.escapes));
  if (plan.escapes > 0) {
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
  out.insert(out.end(), frame.bytes().begin(), frame.bytes().end());
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
  for (uint32_t& state : states) {
    state = reader.U32("lane state");
    // Outside, kernels would not agree on what to do; no encoder goes there.
    if (state < kRansLow || state >= 1u << 31) {
      throw Error(Finding::kBadFrame, fmt::format("a lane state of {}", state))
          .At(reader.offset() - 4);
    }
  }
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
