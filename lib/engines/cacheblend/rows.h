// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv::blend {

// One cache of consecutive tokens, put together from parts of snapshots that may be stored in
// different formats, orders and types. Owns nothing but the snapshots; values are read block by
// block.
class KvRows {
 public:
  struct Part {
    std::shared_ptr<const Snapshot> snapshot;
    uint64_t first_row = 0, rows = 0;  // of every layer
  };
  struct Layer {
    uint32_t index = 0;  // as the snapshots number it
    uint32_t heads = 0, k_dim = 0, v_dim = 0;

    uint32_t channels(bool is_value) const { return heads * (is_value ? v_dim : k_dim); }
    bool operator==(const Layer&) const = default;
  };

  KvRows() = default;
  // Throws unless the parts agree in layers, heads and head sizes, and have K and V of all their
  // rows in every layer.
  explicit KvRows(std::vector<Part> parts);

  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<Layer>& layers() const { return layers_; }
  uint64_t tokens() const { return tokens_; }
  uint64_t bytes() const;

  // Values of tokens [begin, begin + count) as floats, [token][head][dim]; block types are
  // dequantised, llama.cpp's Hadamard rotation undone.
  void Read(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  // Of one head: [token][dim].
  void ReadHead(size_t layer, bool is_value, uint32_t head, uint64_t begin, uint64_t count,
                float* out) const;
  // Gives the pages of a layer back to the system.
  void Drop(size_t layer) const;

 private:
  void ReadHeads(size_t layer, bool is_value, uint32_t head, uint32_t heads, uint64_t begin,
                 uint64_t count, float* out) const;

  std::vector<Part> parts_;
  std::vector<Layer> layers_;
  uint64_t tokens_ = 0;
};

// Rows of a snapshot, the same number in every layer. Throws kUnsupportedLayout where layers hold
// different numbers of tokens (sliding windows), kUnsupportedKind without layers.
uint64_t RowsOf(const Snapshot& snapshot);

}  // namespace kv::blend
