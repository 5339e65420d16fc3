// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/codec/codec.h"

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
// Returns the chunk as halves, if it has 8-bit floats.
NeighbourChunk HalvesOf(NeighbourChunk chunk);

class NeighbourSource {
 public:
  virtual ~NeighbourSource() = default;
  // Throws kLostChunk if there is none, kBadFrame if a chunk must not look at it.
  virtual NeighbourChunk Read(const Neighbour& neighbour) const = 0;
};

// Whether a chunk may be coded by others, or others by it.
bool FitsLayers(const ChunkShape& shape);

// Encodes an f16 or bf16 chunk whose rows are its tokens. Returns false if that takes `to_beat`
// bytes or more. `steps` are the positions of the rows.
bool EncodeByLayers(const ChunkShape& shape, ByteSpan raw, bool is_value,
                    std::span<const Neighbour> neighbours, const NeighbourSource& source,
                    uint64_t to_beat, CodecScratch& scratch, Bytes& payload,
                    const RowSteps& steps = {});
// Reads the neighbours alone. Throws as DecodeChunk.
std::vector<Neighbour> ReadNeighbours(ByteSpan payload);

// One neighbour, as the head of a frame lists it. Reading throws kTruncated and kBadFrame.
void WriteNeighbour(const Neighbour& neighbour, ByteWriter& out);
Neighbour ReadNeighbour(ByteReader& reader);

// Throws as DecodeChunk, and kLostChunk.
void DecodeByLayers(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch, const ChunkInputs& inputs);

// Predicts whole rows from other rows of values, by least squares: all columns are regressed on the
// same taps, so that one factorisation serves them all. It learns row by row and solves more and
// more rarely. FORMAT.md in this folder spells out every operation.

class BlockRegression {
 public:
  static constexpr uint64_t kMaxTaps = 1024, kMaxColumns = 4096;

  // The last tap is 1 in each row. `ridge` says how strongly weights are held near 0, per tap and
  // row.
  BlockRegression(uint64_t taps, uint64_t columns, float ridge, Arena* arena = nullptr);

  // Where the taps of the row to come are put, all but the last.
  std::span<float> taps() { return {pending_row(), taps_ - 1}; }
  // Expects that row, from the rows learned so far.
  void Predict(std::span<float> row);
  // Takes what the row was.
  void Learn(std::span<const float> row);

 private:
  float* pending_row() { return pending_.data() + pending_rows_ * width_; }
  float* Row(ArenaVector<float>& matrix, uint64_t row) { return matrix.data() + row * width_; }
  void AddPending();
  void Solve();
  void Factor();
  void Substitute();

  const uint64_t taps_, columns_, padded_taps_, padded_columns_;
  const float ridge_;
  const uint64_t width_;  // of a row: taps, then columns, each padded with zeros
  // Sums of the products of taps with taps and columns; these, and the rows not yet among them.
  ArenaVector<float> sums_, factor_, pending_;
  ArenaVector<float> roots_;  // inverse roots of the factor's diagonal
  ArenaVector<float> weights_, prediction_;
  uint64_t rows_ = 0, pending_rows_ = 0, next_solution_;
};

}  // namespace kv
