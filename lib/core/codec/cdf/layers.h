// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/codec/codec.h"
#include "lib/core/codec/rotation.h"

// Codes the K or V of a layer with the help of other chunks of the archive, its neighbours: K and V
// of the layer before, and for V also K of the same layer. All are linear images of one vector of
// activations per token, so a row of one predicts the row of another; docs/lab.md, "Prediction from
// other rows", has what each pair gains. FORMAT.md in this folder is the grammar.
namespace kv {

// Names a chunk of the same tokens.
struct Neighbour {
  uint32_t layer = 0;
  bool is_value = false;
  uint16_t columns = 0;  // number of its first columns that are taps

  bool operator==(const Neighbour&) const = default;
};
constexpr size_t kMaxNeighbours = 4;

// A decoded neighbour: rows of f16 or bf16, as many as the chunk has.
struct NeighbourChunk {
  DType dtype = DType::kF16;
  std::shared_ptr<const Bytes> raw;
  uint32_t byte_shift = 0;  // nonzero if f16 values stand for 8-bit floats (HalfForm)
};
// Returns the chunk with 8-bit floats widened to f16; other chunks unchanged.
NeighbourChunk WidenToHalves(NeighbourChunk chunk);

class NeighbourSource {
 public:
  virtual ~NeighbourSource() = default;
  // Throws kLostChunk if the archive has no such chunk, kBadFrame if it may not serve this one.
  virtual NeighbourChunk Read(const Neighbour& neighbour) const = 0;
};

// Returns true if chunks of this shape may be coded by neighbours or serve as one.
bool FitsLayers(const ChunkShape& shape);

// Encodes an f16 or bf16 chunk whose rows are tokens. Returns false if the result is not smaller
// than `to_beat` bytes. `steps` are the positions of the rows.
bool EncodeByLayers(const ChunkShape& shape, ByteSpan raw, bool is_value,
                    std::span<const Neighbour> neighbours, const NeighbourSource& source,
                    uint64_t to_beat, CodecScratch& scratch, Bytes& payload,
                    const RowSteps& steps = {});
// Reads only the list of neighbours. Throws what DecodeChunk throws.
std::vector<Neighbour> ReadNeighbours(ByteSpan payload);

// Yields a neighbour's rows as taps. The rotation of K is undone, so that rows of the same content
// are equal at every position.
class NeighbourTaps {
 public:
  // Throws kLostChunk without a source, kBadFrame if the chunk cannot serve `rows` rows. The
  // rotation and the steps must outlive the object.
  NeighbourTaps(const Neighbour& neighbour, const NeighbourSource* source, uint64_t rows,
                const Rotation& rotation, const RowSteps& steps);

  uint64_t wanted() const { return wanted_; }
  bool bfloat() const { return chunk_.dtype == DType::kBF16; }
  HalfForm form() const { return {bfloat(), chunk_.byte_shift}; }
  // Returns the largest exponent field, by which taps are scaled (LmsScale).
  uint32_t largest() const { return largest_; }
  void Row(uint64_t row, float* taps);

 private:
  const uint64_t wanted_;
  const NeighbourChunk chunk_;
  const uint64_t columns_;
  const uint32_t largest_;
  const bool rotates_;
  const RowSteps steps_;
  Rotator rotator_;
  std::vector<float> x_, still_;
};

// Write and read one neighbour in the header of a frame. Reading throws kTruncated and kBadFrame.
void WriteNeighbour(const Neighbour& neighbour, ByteWriter& out);
Neighbour ReadNeighbour(ByteReader& reader);

// Throws what DecodeChunk throws, and kLostChunk.
void DecodeByLayers(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch, const ChunkInputs& inputs);

// Predicts whole rows by least squares. All columns are regressed on the same taps, so that one
// factorisation serves them all. The model learns row by row and solves ever more rarely. FORMAT.md
// in this folder spells out every operation.

class BlockRegression {
 public:
  static constexpr uint64_t kMaxTaps = 1024, kMaxColumns = 4096;

  // The last tap of each row is the constant 1. `ridge` says how strongly weights are held near 0,
  // per tap and row.
  BlockRegression(uint64_t taps, uint64_t columns, float ridge, Arena* arena = nullptr);

  // Returns where the caller writes the taps of the next row, without the constant.
  std::span<float> taps() { return {pending_row(), taps_ - 1}; }
  // Predicts that row from the rows learnt so far.
  void Predict(std::span<float> row);
  // Adds the row's actual values and solves again when the schedule says so.
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
  const uint64_t width_;  // a row has taps, then columns, each padded with zeros to whole panels
  // Sums of products of taps with taps and columns, their factor, and the rows not yet added.
  ArenaVector<float> sums_, factor_, pending_;
  ArenaVector<float> roots_;  // inverse roots of the factor's diagonal
  ArenaVector<float> weights_, prediction_;
  uint64_t rows_ = 0, pending_rows_ = 0, next_solution_;
};

}  // namespace kv
