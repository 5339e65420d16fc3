// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <vector>

#include "lib/core/snapshot/rope.h"
#include "lib/engines/cacheblend/chunks.h"

namespace kv::blend {

// The full run and the chunks side by side, with the keys of both rotated to the prompt's
// positions. A key is rotated when it is read; the sources stay as they are, so no key is rotated
// twice. Tokens that no chunk covers are read from the full run, since an engine computes them
// anew.
class CachePair {
 public:
  // Throws kUsage if keys must be rotated and `rope` does not say how, and kUnsupportedLayout if
  // the head size differs from layer to layer.
  CachePair(FullCache full, OldCache old, std::optional<ModelRope> rope);

  const FullCache& full() const { return full_; }
  const OldCache& old() const { return old_; }
  const std::optional<ModelRope>& rope() const { return rope_; }
  uint64_t tokens() const { return full_.rows.tokens(); }
  uint64_t covered() const { return old_.rows.tokens(); }  // tokens that chunks cover
  const std::vector<KvRows::Layer>& layers() const { return full_.rows.layers(); }
  // Returns the place in layers() of the layer with this number, if there is one.
  std::optional<size_t> Place(uint32_t layer) const;
  DType dtype() const;     // of the full run's first layer
  uint64_t bytes() const;  // of K and V of both caches

  // Write the keys or values of tokens [begin, begin + count) as floats, [token][head][dim].
  // `layer` is a place in layers().
  void ReadFull(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  void ReadOld(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  // Return the keys or values of one head, [token][dim], for all tokens.
  std::vector<float> FullHead(size_t layer, bool is_value, uint32_t head) const;
  std::vector<float> OldHead(size_t layer, bool is_value, uint32_t head) const;
  // Rotates old keys, [token][head][dim], once more, as the original does when it runs twice on the
  // same object.
  void TurnAgain(size_t layer, uint64_t begin, uint64_t count, float* keys) const;
  // Gives the pages of a layer back to the system.
  void Drop(size_t layer) const;

 private:
  FullCache full_;
  OldCache old_;
  // The rotations of all layers' keys; layers with equal rotations share a table. Empty if no key
  // is rotated.
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
