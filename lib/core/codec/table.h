// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string_view>

#include "lib/core/codec/chunk.h"

// The table of codecs. Names, decoding, the choice of the slowest level, the tests that every codec
// must pass and the fuzzer of chunks all follow from its rows.
namespace kv {

// For encoders whose result is wanted whatever its size.
constexpr uint64_t kAnySize = UINT64_MAX;

struct CodecRow {
  CodecId id;
  std::string_view name;
  // Whether a chunk of this type may be stored in the codec; other chunks are refused.
  bool (*takes)(DType dtype);
  // The fastest level that writes the codec.
  Effort since;
  // Whether the levels from `since` on try the codec on every chunk and keep the smallest result.
  // The choice of other codecs follows rules of its own, in chunk_levels.cc.
  bool tried = false;
  // Sets payload and planes of `out`. Returns false if the codec cannot store these bytes or would
  // not need fewer than `to_beat`.
  bool (*encode)(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat, CodecScratch& scratch,
                 EncodedChunk& out);
  // Fills `raw`; throws as DecodeChunk.
  void (*decode)(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch);
};

// In the order of their ids.
std::span<const CodecRow> Codecs();
// Null if no codec has this id.
const CodecRow* FindCodec(CodecId id);

}  // namespace kv
