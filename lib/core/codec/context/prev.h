// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by prev.cc, context_plan.cc

#include <optional>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/backends.h"
#include "lib/core/codec/context/model.h"
#include "lib/core/kernels/symbols.h"

// Codes rows of f16 and bf16 values in the context of the row above: sign, exponent and the top
// mantissa bits are a symbol that goes through rANS, the other bits are stored raw. FORMAT.md in
// this folder is the grammar.
namespace kv {

// Statistics of half floats after one pass: enough to estimate what coding them without a context
// takes.
struct HalfSurvey {
  HalfForm form = {};
  bool exact = true;  // no value was left out
  uint64_t values = 0, looked = 0;
  // Counts of high bytes (f16), exponents (bf16) or all that there is (8-bit floats).
  std::array<uint32_t, 256> high{};
  uint64_t high_bytes = 0;  // bytes that their entropy amounts to
  // The same for the other byte (of bf16, mantissa and sign), estimated from a sample; 0 of 8-bit
  // floats.
  uint64_t low_bytes = 0;
};
// Looks at a sample of long chunks, or at all values if `every` is set.
HalfSurvey SurveyHalves(ByteSpan values, HalfForm form, bool every);

// Chooses the window of 31 exponents that leaves the fewest values outside it; the lowest window if
// several do. `escapes` receives the number of values outside.
SymbolShape ChooseWindow(const HalfSurvey& survey, uint64_t& escapes);

// How a grid is going to be coded, and what that takes, before it is done.
struct ContextPlan {
  SymbolShape shape;
  RansGrid grid;
  ContextModel model;
  Bytes stored_model;
  uint64_t escapes = 0;
  uint64_t bytes = 0;  // of the frame, within a few
  // Whether scratch.symbols holds the values' symbols of eight bits, on which the plan was made.
  bool symbols_kept = false;
};

// Finds the symbol width, the exponent window and the tables that cost least. `values` are rows x
// columns 16-bit floats. Returns nothing if the frame would not be smaller than `to_beat` bytes,
// which takes little time to find out when the row above says little.
std::optional<ContextPlan> PlanContext(ByteSpan values, const HalfSurvey& survey, uint64_t rows,
                                       uint64_t columns, uint64_t to_beat, ContextScratch& scratch);
// Appends the frame to `out`.
void EncodeContext(ByteSpan values, const ContextPlan& plan, ContextScratch& scratch, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeContext(ByteSpan frame, HalfForm form, std::span<std::byte> values,
                   ContextScratch& scratch);

// The parts that prev and lms frames have in common. Internal to lib/core/codec.

// Returns the first byte of a frame.
uint8_t SymbolsAndLanes(const SymbolShape& shape, RansGrid grid);
// Reads that byte. Throws kBadFrame for a number of lanes that no kernel has.
void ReadSymbolsAndLanes(ByteReader& reader, SymbolShape& shape, RansGrid& grid);

// Appends the exponents of all symbols whose field is 0, of which there are `count`.
void AppendEscapes(ByteSpan values, const uint8_t* symbols, const SymbolShape& shape,
                   uint64_t count, ByteWriter& frame);
// Append what follows the model in a frame: the raw bits, then states and words.
void AppendPlanes(ByteSpan values, const SymbolShape& shape, Bytes& out);
void AppendCoded(std::span<const uint32_t> states, std::span<const uint16_t> words, Bytes& out);

struct CodedPart {
  ByteSpan planes;
  RansStates states;  // states beyond the lanes have their final value
  uint64_t words_at = 0;
  ByteSpan words;

  size_t word_count() const { return words.size() / 2; }
};
// Takes states and words, up to the end. Throws kTruncated, kTrailingBytes, kBadFrame.
void ReadStates(ByteReader& reader, uint32_t lanes, CodedPart& coded);
// Takes the rest of a frame without copying it. Its planes lack the last `hidden` bytes, which are
// in the states. Throws kTruncated, kBadFrame.
CodedPart ReadCoded(ByteReader& reader, const SymbolShape& shape, RansGrid grid, uint64_t hidden);
// Throws kBadPayload unless all words were used and every lane is back at its first state, which is
// 2^15 and at most `most` more.
void CheckCodedEnd(const CodedPart& coded, size_t used, const RansStates& states, uint32_t most);
// Lanes may end with any 15 bits on top of 2^15: what a decoder finds there are the last bytes of
// the planes, which the frame need not hold then. This is how many bytes that is.
size_t HiddenBytes(uint32_t lanes);
// Takes the last `count` bytes of `out` off into the states that a decoder shall end with.
void HideLast(size_t count, Bytes& out, RansStates& states);
// Puts the bytes that were hidden into values made with whatever follows the planes in their place.
void RevealHidden(const CodedPart& coded, RansGrid grid, const RansStates& states,
                  uint32_t raw_bits, std::byte* values);
// Throws kBadFrame unless the grid explains `value_bytes` bytes of values.
void CheckGrid(const SymbolShape& shape, RansGrid grid, uint64_t value_bytes);

}  // namespace kv
