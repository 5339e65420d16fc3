// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Prev frames (prev.h; FORMAT.md, "Prev frames") and the parts of frames that lms and profiled
// chunks share: states and words, escapes, raw planes, and the bytes in the lanes' first states.

#include "lib/core/codec/context/prev.h"

#include <algorithm>
#include <bit>

namespace kv {
namespace {

// sign, exponent field, 0 to 2 mantissa bits
constexpr uint32_t kMinSymbolBits = 6, kMaxSymbolBits = 8;
constexpr uint32_t kLargestField = 31;
constexpr uint32_t kMaxBf16Base = 255 - kLargestField;  // base of the highest window

}  // namespace

uint8_t SymbolsAndLanes(const SymbolShape& shape, RansGrid grid) {
  const int doublings = std::countr_zero(grid.lanes) - std::countr_zero(kRansLanes);
  return static_cast<uint8_t>(shape.symbol_bits | static_cast<uint32_t>(doublings) << 4);
}

void ReadSymbolsAndLanes(ByteReader& reader, SymbolShape& shape, RansGrid& grid) {
  const uint32_t both = reader.U8("symbol bits and lanes");
  shape.symbol_bits = both & 15;
  grid.lanes = kRansLanes << (both >> 4);
  if (grid.lanes > kMaxRansLanes) {
    throw Error(Finding::kBadFrame, "{} lanes are not supported", grid.lanes).At(0);
  }
}

void AppendEscapes(ByteSpan values, const uint8_t* symbols, const SymbolShape& shape,
                   uint64_t count, ByteWriter& frame) {
  Bytes escapes(count);
  const size_t listed = ListEscapes(values.data(), symbols, values.size() / 2, shape,
                                    reinterpret_cast<uint8_t*>(escapes.data()), escapes.size());
  KV_ASSERT(listed == count);
  frame.Append(escapes);
}

void AppendPlanes(ByteSpan values, const SymbolShape& shape, Bytes& out) {
  const size_t count = values.size() / 2, at = out.size();
  out.resize(at + RawPlaneBytes(count, shape.raw_bits()));
  PackRawBits(values.data(), count, shape.raw_bits(), out.data() + at);
}

void AppendCoded(std::span<const uint32_t> states, std::span<const uint16_t> words, Bytes& out) {
  for (const ByteSpan bytes : {std::as_bytes(states), std::as_bytes(words)})
    out.insert(out.end(), bytes.begin(), bytes.end());
}

void ReadStates(ByteReader& reader, uint32_t lanes, CodedPart& coded) {
  coded.states.fill(kRansLow);
  for (uint32_t& state : std::span(coded.states).first(lanes)) {
    state = reader.U32("lane state");
    // The kernels need states in this range: outside it the scalar and the vector decoder could
    // differ. No encoder writes others.
    if (state < kRansLow || state >= 1u << 31) {
      throw Error(Finding::kBadFrame, "the state {} of a lane is out of range", state)
          .At(reader.offset() - 4);
    }
  }
  coded.words_at = reader.offset();
  if (reader.remaining() % 2 != 0) {
    throw Error(Finding::kTrailingBytes, "the frame ends with half a word")
        .At(reader.offset() + reader.remaining() - 1);
  }
  coded.words = reader.Take(reader.remaining(), "words");
}

CodedPart ReadCoded(ByteReader& reader, const SymbolShape& shape, RansGrid grid, uint64_t hidden) {
  CodedPart coded;
  const uint64_t plane_bytes = RawPlaneBytes(grid.rows * grid.columns, shape.raw_bits());
  if (hidden > plane_bytes) {
    throw Error(Finding::kBadFrame, "the lane states claim {} of {} bytes", hidden, plane_bytes)
        .At(2);
  }
  coded.planes = reader.Take(plane_bytes - hidden, "raw bits");
  ReadStates(reader, grid.lanes, coded);
  return coded;
}

void CheckCodedEnd(const CodedPart& coded, size_t used, const RansStates& states, uint32_t most) {
  const bool ends = std::all_of(states.begin(), states.end(), [&](uint32_t state) {
    return state >= kRansLow && state <= kRansLow + most;
  });
  if (used == coded.word_count() && ends) return;
  throw Error(Finding::kBadPayload, "the coded symbols do not end where they should")
      .At(coded.words_at);
}

void CheckGrid(const SymbolShape& shape, RansGrid grid, uint64_t value_bytes) {
  const uint32_t least_bits = shape.form.byte_shift != 0 ? kMaxSymbolBits : kMinSymbolBits;
  if (shape.symbol_bits < least_bits || shape.symbol_bits > kMaxSymbolBits ||
      shape.exponent_base > (shape.form.bfloat ? kMaxBf16Base : 0)) {
    throw Error(Finding::kBadFrame, "the symbol shape is out of range").At(0);
  }
  // Refuses empty chunks too: with no values, one side of the grid could be arbitrarily long.
  if (value_bytes == 0 || uint64_t{grid.rows} * grid.columns * 2 != value_bytes ||
      (grid.rows > 1 && grid.columns < grid.lanes)) {
    throw Error(Finding::kBadFrame,
                "the frame has {} rows of {} values, which are not the expected {} bytes",
                grid.rows, grid.columns, value_bytes)
        .At(4);
  }
}

// Hidden bytes: an encoder may start each lane in any of 2^15 states, and the decoder ends in the
// same one, so the choice carries 15 bits for free.
namespace {
constexpr uint32_t kHiddenBits = 15;
}  // namespace

size_t HiddenBytes(uint32_t lanes) { return lanes * kHiddenBits / 8; }

// Consumes 15 bits at a time, lowest bits first, and sets the state of one lane from them.
void HideLast(size_t count, Bytes& out, RansStates& states) {
  uint32_t pending = 0, bits = 0;
  auto state = states.begin();
  for (const std::byte byte : ByteSpan(out).last(count)) {
    pending |= static_cast<uint32_t>(byte) << bits;
    bits += 8;
    if (bits < kHiddenBits) continue;
    *state++ = kRansLow | (pending & (kRansLow - 1));
    pending >>= kHiddenBits;
    bits -= kHiddenBits;
  }
  out.resize(out.size() - count);
}

// The raw planes were unpacked with the lane words in place of the hidden bytes, because the planes
// must be read before the states are known. This flips the bits that were wrong.
void RevealHidden(const CodedPart& coded, RansGrid grid, const RansStates& states,
                  uint32_t raw_bits, std::byte* values) {
  uint32_t pending = 0, bits = 0;
  auto state = states.begin();
  for (size_t i = 0; i < HiddenBytes(grid.lanes); ++i) {
    if (bits < 8) {
      pending |= (*state++ - kRansLow) << bits;
      bits += kHiddenBits;
    }
    const size_t at = coded.planes.size() + i;
    const auto wrong = static_cast<uint8_t>(coded.planes.data()[at]);
    const auto flipped = static_cast<uint8_t>(pending ^ wrong);
    FlipRawBits(grid.rows * grid.columns, raw_bits, at, flipped, values);
    pending >>= 8;
    bits -= 8;
  }
}

namespace {

// Returns the map as the kernels index it: by any byte.
std::array<uint8_t, 256> TableOfByte(const ContextModel& model) {
  std::array<uint8_t, 256> table_of{};
  std::copy(model.table_of.begin(), model.table_of.end(), table_of.begin());
  return table_of;
}

// Truncates eight-bit symbols to fewer bits.
void CutSymbols(uint32_t cut, std::vector<uint8_t>& symbols) {
  if (cut == 0) return;
  for (uint8_t& symbol : symbols) symbol = static_cast<uint8_t>(symbol >> cut);
}

// Flag of a frame's header: the first states of the lanes hold the last bytes of the planes.
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
  // Shorter frames take fewer lanes, because each lane costs four bytes of state.
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

  // Reserved at once, because a buffer that grows is copied.
  out.reserve(out.size() + head.size() + plan.bytes + plan.bytes / 64);
  out.insert(out.end(), head.bytes().begin(), head.bytes().end());
  AppendPlanes(values, plan.shape, out);
  RansStates states;
  states.fill(kRansLow);
  // The last bytes of the planes are hidden in the states with which the lanes start.
  if (hides) HideLast(hidden, out, states);
  uint16_t* end = scratch.words.data() + count + kRansRoom;
  const uint16_t* begin = RansEncode(scratch.symbols.data(), grid, {.table_of = table_of.data()},
                                     scratch.encoder_symbols.data(), end, states);
  AppendCoded({states.data(), grid.lanes}, {begin, end}, out);
}

void DecodeContext(ByteSpan frame, HalfForm form, std::span<std::byte> values,
                   ContextScratch& scratch) {
  ByteReader reader(frame);
  const size_t count = values.size() / 2;
  SymbolShape shape{.form = form};
  RansGrid grid;
  ReadSymbolsAndLanes(reader, shape, grid);
  shape.exponent_base = reader.U8("exponent base");
  const uint16_t hides = reader.U16("hidden-bytes flag");
  if (hides > kHidden) throw Error(Finding::kBadFrame, "unknown form {} of the frame", hides).At(2);
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
  // Sixteen to 64 rANS lanes decode interleaved; lane c mod lanes has column c.
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
