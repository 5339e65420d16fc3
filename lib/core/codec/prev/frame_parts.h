// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/prev/prev.h"

// The parts that prev and lms frames have in common. Internal to lib/core/codec.
namespace kv {

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
