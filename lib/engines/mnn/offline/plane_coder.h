// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>

#include "lib/core/codec/backends.h"
#include "lib/engines/mnn/offline/offline.h"

namespace kv::mnn::offline {

// One byte plane of [tokens][heads][dim] values. A token has `row` bytes, and a head `dim` of them.
struct PlaneShape {
  uint64_t tokens = 0, row = 0, dim = 0;
};

// Writes the residuals of a block (tokens x row bytes) to `to`. The first token has nothing to be
// predicted from.
void Predict(Predictor predictor, const PlaneShape& shape, const std::byte* from, std::byte* to);

// Transposes bits: bit b of byte i becomes bit b * size + i of the output, counted from the least
// significant bit of byte 0.
void BitShuffle(const std::byte* from, size_t size, std::byte* to);

// Counts the bytes that the original's coder would need for a plane. Each thread needs its own.
class PlaneCoder {
 public:
  // Returns the size and adds to `counts` the predictor that each block chose. Only adaptive mode
  // chooses; legacy mode takes delta_seq for the high plane and raw for the low one.
  uint64_t Size(ByteSpan plane, const PlaneShape& shape, const Options& options, Stream stream,
                std::map<Predictor, uint64_t>& counts);

 private:
  uint64_t Compressed(ByteSpan bytes, int level);
  uint64_t AdaptiveSize(ByteSpan plane, const PlaneShape& shape, const Options& options,
                        Stream stream, std::map<Predictor, uint64_t>& counts);
  // Writes the best payload of one block to `to` and returns its compressed size.
  uint64_t BestOfBlock(const PlaneShape& block, const std::byte* from, const Options& options,
                       const std::vector<Predictor>& predictors, Predictor& best, std::byte* to);
  ByteSpan Payload(Predictor predictor, const PlaneShape& block, const std::byte* from,
                   bool bitshuffle);

  Zstd zstd_;
  ScratchBuffer compressed_, predicted_, shuffled_, merged_;
};

}  // namespace kv::mnn::offline
