// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <vector>

#include "lib/core/codec/layers/block_regression.h"
#include "lib/core/codec/layers/layers.h"
#include "lib/core/codec/ref/ref.h"
#include "lib/core/codec/ref_cdf/near_distributions.h"

// Expects the errors of near rows from those of neighbours: where one layer of a cache differs from
// a reference, the next one differs in much the same way. FORMAT.md in this folder is the grammar;
// all else of such chunks is that of lib/core/codec/ref-cdf.
namespace kv {

// A neighbour, and what stands for its rows in the references.
struct ErrorNeighbour {
  Neighbour neighbour;
  std::vector<uint32_t> layers;  // for each near run, the reference's number of the layer
  Hash128Bytes hash = {};        // of the reference's rows, run after run
};

// What an encoder may use: neighbours, each with the runs of its rows. These are the proposed runs
// of the chunk, one by one, but for the layer, K or V, and the turn.
struct BesideNeighbours {
  struct One {
    Neighbour neighbour;
    std::vector<ReferenceRun> runs;
  };
  std::vector<One> all;
  std::vector<int32_t> turns;  // of K, for each proposed run
  const NeighbourSource& source;
  bool is_value;  // whether the chunk is V
};

struct ErrorsHead {
  bool turns = false;  // whether the chunk's own rows turn, as those of K do
  std::vector<ErrorNeighbour> neighbours;
  Rotation rotation;  // of K
  std::vector<int32_t>
      turns_of_runs;  // of K, for each near run: steps by which it is further on here
};

void WriteErrorsHead(const ErrorsHead& head, ByteWriter& out);
// Throws kTruncated, and kBadFrame for what no encoder writes.
ErrorsHead ReadErrorsHead(ByteReader& reader, uint64_t near_runs);

// Reads the neighbours of a chunk alone. Throws as DecodeChunk.
std::vector<Neighbour> ReadErrorNeighbours(const ChunkShape& shape, ByteSpan payload);

class NeighbourErrors : public ErrorForecast {
 public:
  // `near_runs` are those of the chunk, whose near rows are in them, one after another. Hashes of
  // the head are checked, or set. Throws as NeighbourSource and ReferenceRows do, kBadFrame,
  // kReferenceDiffers.
  NeighbourErrors(const ErrorsHead& head, std::span<const ReferenceRun> near_runs, uint64_t rows,
                  uint64_t columns, const ReferenceRows& references,
                  const NeighbourSource& neighbours);
  ~NeighbourErrors() override;

  // Of the references' rows, by neighbours.
  const std::vector<Hash128Bytes>& hashes() const { return hashes_; }
  const float* Expect(uint64_t near_row) override;
  void Know(uint64_t near_row, const float* errors) override;

 private:
  class Taps;

  const ErrorsHead& head_;
  std::vector<uint32_t> rows_;  // of the chunk, for each near row
  std::vector<Hash128Bytes> hashes_;
  std::vector<std::unique_ptr<Taps>> taps_;
  BlockRegression block_;
  Turner turner_;
  std::vector<float> forecast_, turned_;
};

}  // namespace kv
