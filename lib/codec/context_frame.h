// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/base/dtype.h"
#include "lib/codec/context_model.h"
#include "lib/kernels/symbols.h"

// f16 and bf16 rows coded as symbols in the context of the row above: sign, exponent and the top
// mantissa bits through rANS, the rest raw. formats/kvz/FORMAT.md is the grammar.
namespace kv {

// What coding a grid this way takes, known before it is done.
struct ContextPlan {
  SymbolShape shape;
  RansGrid grid;
  ContextModel model;
  uint64_t escapes = 0;
  uint64_t bytes = 0;  // of the frame, within a few bytes
};

// Buffers that are reused from frame to frame.
struct ContextScratch {
  std::vector<uint8_t> symbols;
  std::vector<uint16_t> words;
  std::vector<RansSlot> slots;
  std::vector<RansEncoderSymbol> encoder_symbols;
};

// Finds symbol width, exponent window and tables by cost. `values` are rows x columns 16-bit
// floats.
ContextPlan PlanContext(ByteSpan values, bool bfloat, uint64_t rows, uint64_t columns,
                        ContextScratch& scratch);
void EncodeContext(ByteSpan values, const ContextPlan& plan, ContextScratch& scratch, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeContext(ByteSpan frame, bool bfloat, std::span<std::byte> values,
                   ContextScratch& scratch);

}  // namespace kv
