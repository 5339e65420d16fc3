// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <vector>

#include "lib/core/snapshot/rope.h"
#include "lib/engines/cacheblend/chunks.h"

namespace kv::blend {

// The full run and the chunks side by side, keys of both at the prompt's positions. Each key is
// turned once, on its way out of the file: the sources stay as they are, so nothing is turned
// twice. Tokens that no chunk covers read as the full run's, since they are computed anew.
class CachePair {
 public:
  // Throws kUsage if keys must be turned and `rope` does not say how, kUnsupportedLayout if heads
  // differ in size from layer to layer.
  CachePair(FullCache full, OldCache old, std::optional<ModelRope> rope);

  const FullCache& full() const { return full_; }
  const OldCache& old() const { return old_; }
  const std::optional<ModelRope>& rope() const { return rope_; }
  uint64_t tokens() const { return full_.rows.tokens(); }
  uint64_t covered() const { return old_.rows.tokens(); }  // by chunks
  const std::vector<KvRows::Layer>& layers() const { return full_.rows.layers(); }
  std::optional<size_t> Place(uint32_t layer) const;  // of a layer's number
  DType dtype() const;                                // of the full run's first layer
  uint64_t bytes() const;                             // of K and V of both

  // [token][head][dim] of tokens [begin, begin + count).
  void ReadFull(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  void ReadOld(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  // [token][dim] of one head and all tokens.
  std::vector<float> FullHead(size_t layer, bool is_value, uint32_t head) const;
  std::vector<float> OldHead(size_t layer, bool is_value, uint32_t head) const;
  // Turns old keys once more, as the original does when it runs twice on the same object.
  void TurnAgain(size_t layer, uint64_t begin, uint64_t count, float* keys) const;
  void Drop(size_t layer) const;

 private:
  FullCache full_;
  OldCache old_;
  // Tables of all layers; layers that turn alike share one. Empty where no key turns.
  struct Turns {
    std::vector<RopeTable> tables;
    std::vector<size_t> of_layer;
    explicit operator bool() const { return !tables.empty(); }
    const RopeTable& Of(size_t layer) const { return tables[of_layer[layer]]; }
  };
  Turns MakeTurns(std::span<const KeyTurn> turns) const;

  std::optional<ModelRope> rope_;
  Turns turn_full_, turn_old_;
};

}  // namespace kv::blend
