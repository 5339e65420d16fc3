// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/progress.h"
#include "lib/codec/chunk.h"

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

struct ContestResult {
  std::string name;
  bool is_peer = false;
  std::array<uint64_t, 2> raw_bytes{}, stored_bytes{};  // K, V
  std::vector<double> encode_seconds, decode_seconds;   // CPU time per round, fastest first

  uint64_t raw() const { return raw_bytes[0] + raw_bytes[1]; }
  uint64_t stored() const { return stored_bytes[0] + stored_bytes[1]; }
};

// Every round all of them by turns over all chunks, so that what else the machine does hits all
// alike. What is decoded is compared with the chunk; throws kInternal if it differs.
std::vector<ContestResult> RunContest(const std::vector<ContestChunk>& chunks,
                                      const std::vector<Contestant>& contestants, int rounds,
                                      Progress* progress);

}  // namespace kv
