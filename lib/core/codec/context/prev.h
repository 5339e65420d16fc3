// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by prev.cc, context_plan.cc

#include <optional>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/backends.h"
#include "lib/core/codec/context/model.h"
#include "lib/core/kernels/symbols.h"

// Codes rows of f16 and bf16 values in the context of the row above: sign, exponent and the top
// mantissa bits form a symbol that is coded by rANS, the other bits are stored raw, because they
// are noise. FORMAT.md in this folder is the grammar.
//
// An encoder surveys the values (SurveyHalves), plans symbols and tables (PlanContext), which may
// refuse early, and then codes (EncodeContext).
namespace kv {

// Statistics of half floats from one pass, which suffice to estimate the size of coding them
// without contexts.
struct HalfSurvey {
  HalfForm form = {};
  bool exact = true;  // no value was left out
  uint64_t values = 0, looked = 0;
  // Counts of high bytes (f16), exponents (bf16) or whole values (8-bit floats).
  std::array<uint32_t, 256> high{};
  uint64_t high_bytes = 0;  // bytes that the high bytes need at their entropy
  // Entropy size of the other byte (for bf16 mantissa and sign), estimated from a sample; 0 for
  // 8-bit floats, which have one byte.
  uint64_t low_bytes = 0;
};
// Surveys all values if `every` is set or the chunk is short, otherwise a sample.
HalfSurvey SurveyHalves(ByteSpan values, HalfForm form, bool every);

// Chooses the window of 31 exponents with the fewest values outside, and among equal ones the
// lowest. `escapes` receives the number of values outside.
SymbolShape ChooseWindow(const HalfSurvey& survey, uint64_t& escapes);

// The choices for coding a grid, and the size that they lead to.
struct ContextPlan {
  SymbolShape shape;
  RansGrid grid;
  ContextModel model;
  Bytes stored_model;
  uint64_t escapes = 0;
  uint64_t bytes = 0;  // size of the frame, accurate to a few bytes
  // True if scratch.symbols holds the eight-bit symbols of the values, on which the plan is based.
  bool symbols_kept = false;
};

// Finds the symbol width, the exponent window and the tables of least cost. `values` are rows x
// columns 16-bit floats. Returns nullopt if the frame would not be smaller than `to_beat` bytes; it
// refuses quickly if the row above predicts little.
std::optional<ContextPlan> PlanContext(ByteSpan values, const HalfSurvey& survey, uint64_t rows,
                                       uint64_t columns, uint64_t to_beat, ContextScratch& scratch);
// Appends the frame to `out`.
void EncodeContext(ByteSpan values, const ContextPlan& plan, ContextScratch& scratch, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeContext(ByteSpan frame, HalfForm form, std::span<std::byte> values,
                   ContextScratch& scratch);

// The following parts are common to prev, lms and profiled frames. Internal to lib/core/codec.

// Returns the first byte of a frame.
uint8_t SymbolsAndLanes(const SymbolShape& shape, RansGrid grid);
// Reads SymbolsAndLanes' byte. Throws kBadFrame for a number of lanes that no kernel has.
void ReadSymbolsAndLanes(ByteReader& reader, SymbolShape& shape, RansGrid& grid);

// Appends the exponents of all symbols whose exponent field is 0, of which there are `count`.
void AppendEscapes(ByteSpan values, const uint8_t* symbols, const SymbolShape& shape,
                   uint64_t count, ByteWriter& frame);
// Append the parts of a frame that follow the model: the raw bits, then states and words.
void AppendPlanes(ByteSpan values, const SymbolShape& shape, Bytes& out);
void AppendCoded(std::span<const uint32_t> states, std::span<const uint16_t> words, Bytes& out);

struct CodedPart {
  ByteSpan planes;
  RansStates states;  // states beyond the lanes have their final value
  uint64_t words_at = 0;
  ByteSpan words;

  size_t word_count() const { return words.size() / 2; }
};
// Takes states and words, up to the end of the frame. Throws kTruncated, kTrailingBytes, kBadFrame.
void ReadStates(ByteReader& reader, uint32_t lanes, CodedPart& coded);
// Takes the rest of a frame without copying it. The planes lack their last `hidden` bytes, which
// the states hold. Throws kTruncated, kBadFrame.
CodedPart ReadCoded(ByteReader& reader, const SymbolShape& shape, RansGrid grid, uint64_t hidden);
// Throws kBadPayload unless all words were used and every lane ended in a permitted first state:
// from 2^15 to 2^15 + `most`.
void CheckCodedEnd(const CodedPart& coded, size_t used, const RansStates& states, uint32_t most);
// Returns the number of bytes that the first states of the lanes hold. A lane may start with any 15
// bits on top of 2^15, which a decoder finds again at the end: they hold the last bytes of the
// planes, which the frame then omits.
size_t HiddenBytes(uint32_t lanes);
// Moves the last `count` bytes of `out` into the states that the decoder will end with.
void HideLast(size_t count, Bytes& out, RansStates& states);
// Corrects values that were unpacked before the hidden bytes were known.
void RevealHidden(const CodedPart& coded, RansGrid grid, const RansStates& states,
                  uint32_t raw_bits, std::byte* values);
// Throws kBadFrame unless the grid has exactly `value_bytes` bytes of values.
void CheckGrid(const SymbolShape& shape, RansGrid grid, uint64_t value_bytes);

}  // namespace kv
