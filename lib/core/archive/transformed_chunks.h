// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "lib/core/archive/records.h"
#include "lib/core/codec/transformed/transformed.h"
#include "lib/core/transform/transform.h"

// Chunks of codec 32. Their codec parameter is 0 if the payload holds the coefficients of all
// layers of a group, otherwise 1 + the layer whose chunk, for the same tokens, holds them.
namespace kv {

// A transform as the chunks of one archive use it. May be called from any number of threads.
class ArchiveTransform {
 public:
  using Coefficients = std::shared_ptr<const std::vector<float>>;

  // Throws kBadField if a part of the basis ends within a layer, and kInconsistent if layers or
  // rotations differ from the archive's or the transform has no tables for the archive's ratio.
  ArchiveTransform(std::shared_ptr<const Transform> transform, const Approximation& approximation);

  const Transform& transform() const { return *transform_; }
  const Approximation& approximation() const { return approximation_; }
  // The layers of one part of the basis, which share their coefficients.
  struct Group {
    const TransformPart* part = nullptr;
    StepCode code;
    uint32_t first_layer = 0, layers = 0;  // places in Approximation::layers
  };
  const std::vector<Group>& Groups(bool is_value) const { return is_value ? v_ : k_; }
  // Returns the group of a layer's number. Throws kBadFrame if the transform has no such layer.
  const Group& FindGroup(uint32_t layer, bool is_value) const;

  // Returns the coefficients of a block if Decode's result is still in the cache, otherwise null.
  Coefficients FindDecoded(size_t place) const;
  // Returns decoded coefficients, [token][component]; the caller's `place` identifies the block in
  // the cache. Throws what DecodeCoefficients throws.
  Coefficients Decode(const ChunkHead& holder, size_t place, ByteSpan payload) const;
  // Restores a chunk of the coefficients' tokens. Throws kBadFrame if the transform does not have
  // the chunk's heads, units or tokens.
  void Restore(const ChunkHead& head, const std::vector<float>& coefficients,
               std::span<std::byte> raw) const;

 private:
  std::vector<Group> MakeGroups(const TransformSide& side) const;

  std::shared_ptr<const Transform> transform_;
  Approximation approximation_;
  std::vector<Group> k_, v_;
  mutable std::mutex mutex_;                                   // guards everything below
  mutable std::deque<std::pair<size_t, Coefficients>> cache_;  // oldest first
  mutable uint64_t cached_bytes_ = 0;
};

// The chunks of a source's approximation, for a writer.
struct TransformedChunks {
  std::shared_ptr<const ArchiveTransform> transform;
  std::vector<uint64_t> cuts;  // tokens at which chunks begin
  struct Key {
    bool is_value;
    uint32_t layer;  // first layer of the group
    uint64_t token_begin;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, Bytes> streams;  // streams of coefficients

  // Encodes a chunk if its tokens have coefficients, and sets the codec parameter.
  bool Encode(ChunkHead& head, Bytes& payload) const;
  // Decodes a chunk that Encode has encoded.
  void Decode(const ChunkHead& head, std::span<std::byte> raw) const;

 private:
  Key MakeKey(const ChunkHead& head) const;
};

// Sums from which the loss of a layer's K or V follows.
struct LossSums {
  double error = 0, energy = 0, largest = 0;

  void Add(DType dtype, ByteSpan original, ByteSpan approximated);
  void Add(const LossSums& other);
  Loss Finish() const;
};

}  // namespace kv
