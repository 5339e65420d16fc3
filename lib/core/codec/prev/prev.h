// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/backends.h"
#include "lib/core/codec/prev/context_model.h"
#include "lib/core/kernels/symbols.h"

// Codes rows of f16 and bf16 values in the context of the row above: sign, exponent and the top
// mantissa bits are a symbol that goes through rANS, the other bits are stored raw. FORMAT.md in
// this folder is the grammar. context_plan.cc implements SurveyHalves, ChooseWindow and
// PlanContext, prev.cc the rest.
namespace kv {

// Statistics of half floats after one pass: enough to estimate what coding them without a context
// takes.
struct HalfSurvey {
  bool bfloat = false;
  bool exact = true;  // no value was left out
  uint64_t values = 0, looked = 0;
  std::array<uint32_t, 256> high{};  // counts of high bytes (f16) or exponents (bf16)
  uint64_t high_bytes = 0;           // bytes that their entropy amounts to
  // The same for the other byte (of bf16, mantissa and sign), estimated from a sample.
  uint64_t low_bytes = 0;
};
// Looks at a sample of long chunks, or at all values if `every` is set.
HalfSurvey SurveyHalves(ByteSpan values, bool bfloat, bool every);

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
void DecodeContext(ByteSpan frame, bool bfloat, std::span<std::byte> values,
                   ContextScratch& scratch);

}  // namespace kv
