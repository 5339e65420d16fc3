// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "lib/core/base/progress.h"
#include "lib/core/codec/chunk.h"

// Ways to compress a cache against each other on its own chunks: sizes, and the time of one thread.
namespace kv {

struct ContestChunk {
  bool is_value = false;
  ChunkShape shape;  // [token][head][unit]
  Bytes raw;
  Bytes by_head;  // [head][token][unit] as the engine codes it; empty where that is the same
};

// One way. `encode` appends to `out`, `decode` fills `raw`.
struct Contestant {
  std::string name;
  bool is_peer = false;
  std::function<void(const ContestChunk& chunk, CodecScratch& scratch, EncodedChunk& out)> encode;
  std::function<void(const ContestChunk& chunk, const EncodedChunk& encoded, CodecScratch& scratch,
                     std::span<std::byte> raw)>
      decode;
};

// kvtool's levels, in order.
std::vector<Contestant> LevelContestants();
// Copying, zstd on the bytes and on their planes, exponents and mantissas through Huffman (the way
// of ZipNN), and libblosc if it can be loaded. Slow ones only if asked for.
std::vector<Contestant> PeerContestants(bool slow);

// CPU time of each round, fastest first.
struct ContestTimes {
  std::vector<double> encode_seconds, decode_seconds;
};

// Of K or of V.
struct ContestPart : ContestTimes {
  uint64_t raw_bytes = 0, stored_bytes = 0;
  double worst_chunk = 0;  // the largest of bytes / bytes of the first contestant, over all chunks
};

struct ContestResult {
  std::string name;
  bool is_peer = false;
  std::array<ContestPart, 2> parts;  // K, V
  ContestTimes both;

  uint64_t raw_bytes() const { return parts[0].raw_bytes + parts[1].raw_bytes; }
  uint64_t stored_bytes() const { return parts[0].stored_bytes + parts[1].stored_bytes; }
};

// Every round all of them by turns over all chunks, so that what else the machine does hits all
// alike. The first time, when memory is fresh, does not count, except for those that take longer
// than `patience` seconds: they have that one round. What is decoded is compared with the chunk;
// throws kInternal if it differs.
std::vector<ContestResult> RunContest(const std::vector<ContestChunk>& chunks,
                                      const std::vector<Contestant>& contestants, int rounds,
                                      double patience, Progress* progress);

}  // namespace kv
