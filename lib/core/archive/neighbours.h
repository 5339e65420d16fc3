// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "lib/core/archive/records.h"
#include "lib/core/codec/cdf/layers.h"

// Chunks that others of the same archive are coded by. The codec parameter of a chunk of codec
// kLayers is its depth: it looks at chunks of less depth only, and all others have depth 0.
namespace kv {

// How deep chunks may be, and how many others one may need, all together.
constexpr uint32_t kMaxLayerDepth = 64;
constexpr uint64_t kMostNeededChunks = 128, kMostNeededBytes = uint64_t{256} << 20;

// Whether a chunk has all channels of its tokens, in an order in which others can look at it.
bool CanBeNeighbour(const ChunkHead& head);

// Finds chunks by what they hold: the first one of each K or V that begins with a token.
class NeighbourIndex {
 public:
  void Add(size_t place, const ChunkHead& head);
  // The neighbour of a chunk; nothing if there is none of the same tokens.
  std::optional<size_t> Find(const ChunkHead& of, const Neighbour& neighbour) const;

 private:
  struct Key {
    uint32_t layer;
    ChunkKind kind;
    uint64_t token_begin, tokens;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, size_t> places_;
};

// What the chunks of an archive decode to, for those that are coded by them. Any number of threads
// may ask.
class NeighbourCache {
 public:
  using Decoder = std::function<Bytes(size_t place)>;

  // Returns the chunk's bytes if they are at hand.
  std::shared_ptr<const Bytes> Find(size_t place);
  // Returns them, decoded by the first who asks. Throws what decoding threw, to all who ask.
  std::shared_ptr<const Bytes> Get(size_t place, const Decoder& decode);

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const Bytes> raw;
    std::optional<Error> failure;
  };
  std::shared_ptr<Entry> EntryOf(size_t place);
  void Keep(size_t place, const std::shared_ptr<const Bytes>& raw);

  std::mutex mutex_;  // of all below
  std::map<size_t, std::shared_ptr<Entry>> entries_;
  std::deque<std::pair<size_t, uint64_t>> kept_;  // oldest first, with their bytes
  uint64_t kept_bytes_ = 0;
};

// What an archive needs to decode such chunks; made when it is opened, empty if it has none.
struct ArchiveNeighbours {
  NeighbourIndex index;
  NeighbourCache cache;
  bool any = false;
};

// While an archive is written: which chunks may be coded by which, and their bytes from the source.
class NeighbourPlan {
 public:
  NeighbourPlan() = default;
  // Joins up to `most` layers. `heads` are all chunks of the archive to be. Both outlive it.
  NeighbourPlan(const Source& source, std::span<const ChunkHead> heads, uint32_t most);

  struct Choice {
    std::vector<Neighbour> neighbours;
    uint32_t depth = 0;
  };
  // None for a chunk that is to stand on its own.
  Choice Of(const ChunkHead& head) const;

  // Neighbours of one chunk.
  class Rows : public NeighbourSource {
   public:
    Rows(const NeighbourPlan& plan, const ChunkHead& of) : plan_(plan), of_(of) {}
    NeighbourChunk Read(const Neighbour& neighbour) const override;

   private:
    const NeighbourPlan& plan_;
    const ChunkHead& of_;
  };

 private:
  const Source* source_ = nullptr;
  uint32_t most_ = 1;
  std::span<const ChunkHead> heads_;
  std::vector<uint32_t> layers_;  // ascending
  NeighbourIndex index_;
};

}  // namespace kv
