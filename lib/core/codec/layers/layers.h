// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lib/core/codec/chunk.h"

// Codes the K or V of a layer by other chunks of the same archive, its neighbours: K and V of the
// layer before, and for V also K of the same layer. All stem from one row of activations per token,
// so rows of one say something of those of another. FORMAT.md in this folder is the grammar.
namespace kv {

// A chunk of the same tokens.
struct Neighbour {
  uint32_t layer = 0;
  bool is_value = false;
  uint16_t columns = 0;  // so many of the first ones of its rows are looked at

  bool operator==(const Neighbour&) const = default;
};
constexpr size_t kMaxNeighbours = 4;

// What a neighbour decodes to: rows of f16 or bf16, as many as the chunk has.
struct NeighbourChunk {
  DType dtype = DType::kF16;
  std::shared_ptr<const Bytes> raw;
};

class NeighbourSource {
 public:
  virtual ~NeighbourSource() = default;
  // Throws kLostChunk if there is none, kBadFrame if a chunk must not look at it.
  virtual NeighbourChunk Read(const Neighbour& neighbour) const = 0;
};

// Whether a chunk may be coded by others, or others by it.
bool FitsLayers(const ChunkShape& shape);

// Encodes an f16 or bf16 chunk whose rows are its tokens. Returns false if that takes `to_beat`
// bytes or more.
bool EncodeByLayers(const ChunkShape& shape, ByteSpan raw, bool is_value,
                    std::span<const Neighbour> neighbours, const NeighbourSource& source,
                    uint64_t to_beat, CodecScratch& scratch, Bytes& payload);
// Reads the neighbours alone. Throws as DecodeChunk.
std::vector<Neighbour> ReadNeighbours(ByteSpan payload);

// One neighbour, as the head of a frame lists it. Reading throws kTruncated and kBadFrame.
void WriteNeighbour(const Neighbour& neighbour, ByteWriter& out);
Neighbour ReadNeighbour(ByteReader& reader);

// For tests and fuzzers of all codecs: a frame without neighbours.
bool EncodeWithoutNeighbours(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat,
                             CodecScratch& scratch, EncodedChunk& out);
// Reads neighbours through scratch.neighbours. Throws as DecodeChunk, and kLostChunk.
void DecodeByLayers(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch);

}  // namespace kv
