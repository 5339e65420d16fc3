// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/base/progress.h"

// Compares ways to compress a cache on the cache's own chunks: their sizes, and the time they take
// on one thread. Levels code rows as archives do.
namespace kv {

struct ContestChunk {
  ChunkHead head;  // header of rows, in [token][head][unit]
  Bytes raw;
  Bytes by_head;  // [token][head][unit], as the engine codes it; empty if `raw` has the same order
  std::shared_ptr<const RowOrder> order = nullptr;  // order of the chunk's cells; null if unknown

  bool is_value() const { return head.kind == ChunkKind::kValue; }
  DType dtype() const { return head.dtype; }
};

// Gathers the rows [begin, begin + count) of a tensor of layer `layer`.
ContestChunk MakeContestChunk(const KvTensor& tensor, uint32_t layer, bool is_value, uint64_t begin,
                              uint64_t count, const RowOrders& orders);

// Output of a contestant for one chunk.
struct ContestPayload : EncodedChunk {
  ChunkHead head;  // header that kvtool's levels give the chunk
};

// A way to compress. `encode` appends to `out`, `decode` fills `raw`.
struct Contestant {
  std::string name;
  bool is_peer = false;
  std::function<void(const ContestChunk& chunk, CodecScratch& scratch, ContestPayload& out)> encode;
  std::function<void(const ContestChunk& chunk, const ContestPayload& encoded,
                     CodecScratch& scratch, std::span<std::byte> raw)>
      decode;
};

inline constexpr std::array kAllLevels = {Effort::kCompat, Effort::kFast, Effort::kDefault,
                                          Effort::kHigh, Effort::kMax};

// Returns a contestant for each level and, if `profile` is not null, one named "default-profile"
// and so on for each level that a profile serves.
std::vector<Contestant> LevelContestants(std::span<const Effort> levels = kAllLevels,
                                         const std::shared_ptr<const Profile>& profile = nullptr);
// Returns a contestant for the device frames of each level above kCompat: "fast-blocks" ...
std::vector<Contestant> BlockContestants();
// Returns what other programs would use: a plain copy, zstd on the bytes and on their planes,
// Huffman codes for exponents and mantissas (as ZipNN does), and libblosc if it can be loaded. Slow
// peers take part only if `slow` is set.
std::vector<Contestant> PeerContestants(bool slow);

// The CPU time of each round, fastest round first.
struct ContestTimes {
  std::vector<double> encode_seconds, decode_seconds;
};

// The result for K or for V.
struct ContestPart : ContestTimes {
  uint64_t raw_bytes = 0, stored_bytes = 0;
  double worst_chunk = 0;  // largest ratio of a chunk's bytes to those of the first contestant
};

struct ContestResult {
  std::string name;
  bool is_peer = false;
  std::array<ContestPart, 2> parts;  // K, V
  ContestTimes both;

  uint64_t raw_bytes() const { return parts[0].raw_bytes + parts[1].raw_bytes; }
  uint64_t stored_bytes() const { return parts[0].stored_bytes + parts[1].stored_bytes; }
};

// Times all contestants. Each round runs every contestant over all chunks, so background load
// affects all equally. The first round does not count, because memory is still untouched; a
// contestant that takes longer than `patience` seconds runs in that round only. Compares what each
// contestant decodes with the chunk, and throws kInternal if it differs.
std::vector<ContestResult> RunContest(const std::vector<ContestChunk>& chunks,
                                      const std::vector<Contestant>& contestants, int rounds,
                                      double patience, Progress* progress);

}  // namespace kv
