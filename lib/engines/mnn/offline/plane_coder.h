// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>

#include "lib/core/codec/backends.h"
#include "lib/engines/mnn/offline/offline.h"

namespace kv::offline {

// One byte plane of [tokens][heads][dim] values: `row` bytes per token, of which `dim` are a head.
struct PlaneShape {
  uint64_t tokens = 0, row = 0, dim = 0;
};

// Writes the prediction of a block (tokens x row bytes) to `to`; its first token is predicted from
// nothing.
void Predict(Predictor predictor, const PlaneShape& shape, const std::byte* from, std::byte* to);

// Bit b of byte i goes to bit b * size + i, counted from the least significant bit of byte 0.
void BitShuffle(const std::byte* from, size_t size, std::byte* to);

// Counts the bytes that the original's coder of one plane would need. One object per thread.
class PlaneCoder {
 public:
  // Adds to `counts` what each block chose. `predictors` matter in adaptive mode only; legacy
  // takes delta_seq for the high plane and raw for the low one.
  uint64_t Size(ByteSpan plane, const PlaneShape& shape, const Options& options, Stream stream,
                std::map<Predictor, uint64_t>& counts);

 private:
  uint64_t Compressed(ByteSpan bytes, int level);
  uint64_t AdaptiveSize(ByteSpan plane, const PlaneShape& shape, const Options& options,
                        Stream stream, std::map<Predictor, uint64_t>& counts);
  // The payload of one block in `chosen_`, its compressed size returned.
  uint64_t BestOfBlock(const PlaneShape& block, const std::byte* from, const Options& options,
                       const std::vector<Predictor>& predictors, Predictor& best, std::byte* to);
  ByteSpan Payload(Predictor predictor, const PlaneShape& block, const std::byte* from,
                   bool bitshuffle);

  Zstd zstd_;
  ScratchBuffer compressed_, predicted_, shuffled_, merged_;
};

}  // namespace kv::offline
