// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv::blend {

// One cache of consecutive tokens, joined from parts of snapshots that may be stored in different
// formats, orders and types. Owns the snapshots and no values, which are read block by block.
class KvRows {
 public:
  struct Part {
    std::shared_ptr<const Snapshot> snapshot;
    uint64_t first_row = 0, rows = 0;  // the rows of the snapshot's layers that belong to the part
  };
  struct Layer {
    uint32_t index = 0;  // its number in the snapshots
    uint32_t heads = 0, k_dim = 0, v_dim = 0;

    uint32_t channels(bool is_value) const { return heads * (is_value ? v_dim : k_dim); }
    bool operator==(const Layer&) const = default;
  };

  KvRows() = default;
  // Throws unless the parts agree in layers, heads and head sizes and have K and V of all their
  // rows in every layer.
  explicit KvRows(std::vector<Part> parts);

  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<Layer>& layers() const { return layers_; }
  uint64_t tokens() const { return tokens_; }
  uint64_t bytes() const;

  // Writes the keys or values of tokens [begin, begin + count) as floats, [token][head][dim]. Block
  // types are dequantised and llama.cpp's Hadamard transform is undone. `layer` is a place in
  // layers().
  void Read(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  // Writes those of one head, [token][dim].
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

// Returns the number of rows in every layer of a snapshot. Throws kUnsupportedLayout if layers hold
// different numbers of tokens (sliding windows), and kUnsupportedKind if there are no layers.
uint64_t RowsOf(const Snapshot& snapshot);

}  // namespace kv::blend
