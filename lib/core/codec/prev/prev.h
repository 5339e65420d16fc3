// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/base/dtype.h"
#include "lib/core/codec/backends.h"
#include "lib/core/codec/prev/context_model.h"
#include "lib/core/kernels/symbols.h"

// f16 and bf16 rows coded as symbols in the context of the row above: sign, exponent and the top
// mantissa bits through rANS, the rest raw. FORMAT.md in this folder is the grammar.
namespace kv {

// What is known of half floats after one look: enough to say what coding them takes without a
// context.
struct HalfSurvey {
  bool bfloat = false;
  bool exact = true;  // no value was left out
  uint64_t values = 0, looked = 0;
  std::array<uint32_t, 256> high{};  // counts of high bytes (f16) or exponents (bf16)
  uint64_t high_bytes = 0;           // what their entropy comes to
  // The same, from a sample, of the other byte: of bf16, mantissa and sign.
  uint64_t low_bytes = 0;
};
// Of long chunks a sample, unless every value is asked for.
HalfSurvey SurveyHalves(ByteSpan values, bool bfloat, bool every);

// The window of 31 exponents that leaves the fewest values outside (escapes); the lowest of
// several.
SymbolShape ChooseWindow(const HalfSurvey& survey, uint64_t& escapes);

// What coding a grid this way takes, known before it is done.
struct ContextPlan {
  SymbolShape shape;
  RansGrid grid;
  ContextModel model;
  Bytes stored_model;
  uint64_t escapes = 0;
  uint64_t bytes = 0;  // of the frame, within a few
};

// Finds symbol width, exponent window and tables by cost. `values` are rows x columns 16-bit
// floats. Nothing if the frame would not be smaller than `to_beat` bytes, which is soon seen where
// the row above says little.
std::optional<ContextPlan> PlanContext(ByteSpan values, const HalfSurvey& survey, uint64_t rows,
                                       uint64_t columns, uint64_t to_beat, ContextScratch& scratch);
// Appends the frame to `out`.
void EncodeContext(ByteSpan values, const ContextPlan& plan, ContextScratch& scratch, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeContext(ByteSpan frame, bool bfloat, std::span<std::byte> values,
                   ContextScratch& scratch);

}  // namespace kv
