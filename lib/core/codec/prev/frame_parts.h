// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/prev/prev.h"

// What frames of symbols in context have in common; for lib/core/codec alone.
namespace kv {

// The first byte of a frame.
uint8_t SymbolsAndLanes(const SymbolShape& shape, RansGrid grid);
// Throws kBadFrame for lanes that no kernel has.
void ReadSymbolsAndLanes(ByteReader& reader, SymbolShape& shape, RansGrid& grid);

// The exponents of symbols whose field is 0, if those are escapes.
void AppendEscapes(ByteSpan values, const uint8_t* symbols, const SymbolShape& shape,
                   ByteWriter& frame);
// What follows the model of a frame.
void AppendPlanes(ByteSpan values, const SymbolShape& shape, Bytes& out);
void AppendCoded(std::span<const uint32_t> states, std::span<const uint16_t> words, Bytes& out);

struct CodedPart {
  ByteSpan planes;
  RansStates states;  // those past the lanes as at the end
  uint64_t words_at = 0;
  ByteSpan words;

  size_t word_count() const { return words.size() / 2; }
};
// The rest of a frame, where it lies; its planes lack `hidden` bytes. Throws kTruncated, kBadFrame.
CodedPart ReadCoded(ByteReader& reader, const SymbolShape& shape, RansGrid grid, uint64_t hidden,
                    uint64_t frame_bytes);
// Throws kBadPayload unless all words were used and all lanes are back where they began, up to
// `most` beyond 2^15.
void CheckCodedEnd(const CodedPart& coded, size_t used, const RansStates& states, uint32_t most);
// Throws kBadFrame.
void CheckGrid(const SymbolShape& shape, RansGrid grid, uint64_t value_bytes);

}  // namespace kv
