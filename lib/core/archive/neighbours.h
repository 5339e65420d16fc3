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
#include <tuple>
#include <vector>

#include "lib/core/archive/records.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/profiled/profile.h"

// Chunks from which others of the same archive are predicted. The codec parameter of a chunk of
// a codec with neighbours is its depth: a chunk uses only chunks of less depth, and chunks of other
// codecs have depth 0.
namespace kv {

// Limits on depth, and on the number and bytes of all chunks that one chunk needs.
constexpr uint32_t kMaxLayerDepth = 64;
constexpr uint64_t kMostNeededChunks = 128, kMostNeededBytes = uint64_t{256} << 20;

// Returns true if a chunk has all channels of its tokens, in an order that others can use.
bool CanBeNeighbour(const ChunkHead& head);

// Finds chunks by content: the first chunk of each K or V that begins with a given token.
class NeighbourIndex {
 public:
  void Add(size_t place, const ChunkHead& head);
  // Returns the neighbour of a chunk; nullopt if there is none with the same tokens.
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

// Caches the decoded chunks from which others are predicted. May be called from any number of
// threads.
class NeighbourCache {
 public:
  using Decoder = std::function<Bytes(size_t place)>;

  // Returns the chunk's bytes if they are cached.
  std::shared_ptr<const Bytes> Find(size_t place);
  // Returns the chunk's bytes; the first caller decodes them, others wait. An exception of the
  // decoder is thrown to all of them.
  std::shared_ptr<const Bytes> Get(size_t place, const Decoder& decode);

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const Bytes> raw;
    std::optional<Error> failure;
  };
  std::shared_ptr<Entry> FindEntry(size_t place);
  void Keep(size_t place, const std::shared_ptr<const Bytes>& raw);

  std::mutex mutex_;  // guards everything below
  std::map<size_t, std::shared_ptr<Entry>> entries_;
  std::deque<std::pair<size_t, uint64_t>> kept_;  // oldest first, with their sizes
  uint64_t kept_bytes_ = 0;
};

// The index and cache for decoding chunks that need neighbours; built when an archive is opened.
struct ArchiveNeighbours {
  NeighbourIndex index;
  NeighbourCache cache;
  bool any = false;
  // Chunks with coefficients of a transform: layer, kind, first token, tokens.
  std::map<std::tuple<uint32_t, ChunkKind, uint64_t, uint64_t>, size_t> coefficients;
};

// Tells a writer which chunks may predict a chunk, and reads their bytes from the source.
class NeighbourPlan {
 public:
  NeighbourPlan() = default;
  // Joins up to `most` layers. `heads` are all chunks of the future archive; `profile`, which may
  // be nullptr, may have regressions for them. `source`, `heads` and the profile must outlive the
  // object.
  NeighbourPlan(const Source& source, std::span<const ChunkHead> heads, uint32_t most,
                const Profile* profile);

  struct Choice {
    std::vector<Neighbour> neighbours;
    // The profile's regression for the chunk, if all that it needs is in the same set of layers.
    std::optional<size_t> regression;
    uint32_t depth = 0;
  };
  // Returns an empty choice for a chunk that is to be independent.
  Choice Of(const ChunkHead& head) const;

  // The neighbours of one chunk.
  class Rows : public NeighbourSource {
   public:
    Rows(const NeighbourPlan& plan, const ChunkHead& of) : plan_(plan), of_(of) {}
    NeighbourChunk Read(const Neighbour& neighbour) const override;

   private:
    const NeighbourPlan& plan_;
    const ChunkHead& of_;
  };

 private:
  // Returns the position of a layer among all layers.
  size_t PlaceOfLayer(uint32_t layer) const;
  std::optional<size_t> FindRegression(const ChunkHead& head, size_t first_layer) const;

  const Source* source_ = nullptr;
  const Profile* profile_ = nullptr;
  uint32_t most_ = 1;
  std::span<const ChunkHead> heads_;
  std::vector<uint32_t> layers_;  // ascending
  NeighbourIndex index_;
};

}  // namespace kv
