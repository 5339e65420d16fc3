// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/snapshot/keep_plan.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/engines/mnn/runtime/counters.h"

namespace kv::mnn::runtime {

// K or V of one layer as the runtime stores it.
struct TensorShape {
  DType dtype = DType::kF16;
  uint32_t heads = 0, head_dim = 0, element_bytes = 0;

  uint64_t head_bytes() const { return uint64_t{head_dim} * element_bytes; }  // of one token
  uint64_t row_bytes() const { return heads * head_bytes(); }
};

// Tokens [begin, begin + tokens) of a layer's cache, wherever they lie: element (token, head, dim)
// is at data + token * token_step + head * head_step + dim * element_bytes.
struct CachePiece {
  uint64_t begin = 0, tokens = 0;
  const std::byte* data = nullptr;
  uint64_t token_step = 0, head_step = 0;
};
using PieceVisitor = std::function<void(const CachePiece&)>;

// K and V of a range, each [head][token][dim]; v is empty where the layer has none. Shared, so that
// a worker reads what its owner still holds.
struct RangeBytes {
  std::array<std::shared_ptr<const Bytes>, 2> tensors;

  uint64_t size() const;
};

// The rows of one layer in one growing buffer per tensor, [token][head][dim], as an engine keeps
// them. Rows come from a snapshot by position.
class LayerCache {
 public:
  // `expand_tokens`: what a buffer that is too small gets on top.
  LayerCache(const LayerKv& source, uint64_t expand_tokens);

  void Append(uint64_t begin, uint64_t end);  // positions of the source
  void Compact(const KeepPlan& kept);         // indices; the buffers keep their size
  void PopFront(uint64_t tokens);             // the buffers shrink
  LayerCache TakeFront(uint64_t tokens);      // likewise
  void Zero(uint64_t begin, uint64_t tokens);
  bool FlipBitOfLast();  // in K; false where there are no rows

  Bytes Gather(bool is_value, uint64_t begin, uint64_t tokens) const;  // [head][token][dim]
  RangeBytes Gather(uint64_t begin, uint64_t tokens) const;
  void Scatter(bool is_value, uint64_t begin, uint64_t tokens, ByteSpan from);

  const LayerKv& source() const { return *source_; }
  bool has_values() const { return source_->v.has_value(); }
  const TensorShape& shape(bool is_value) const { return shapes_[is_value]; }
  uint64_t size() const { return positions_.size(); }
  uint64_t capacity() const { return capacity_; }
  std::span<const uint32_t> positions() const { return positions_; }
  uint64_t row_bytes() const { return shapes_[0].row_bytes() + shapes_[1].row_bytes(); }
  ByteSpan rows(bool is_value) const { return rows_[is_value]; }
  CachePiece Piece(bool is_value) const;

 private:
  const LayerKv* source_;
  std::array<TensorShape, 2> shapes_;  // K, V
  std::array<Bytes, 2> rows_;
  std::vector<uint32_t> positions_;
  uint64_t expand_tokens_, capacity_ = 0;  // in tokens
};

// [head][token][dim] of the tokens in `kept`, from the same of `tokens` tokens.
Bytes SelectTokens(const TensorShape& shape, ByteSpan from, uint64_t tokens, const KeepPlan& kept);
// The same of one range after the other.
Bytes JoinTokens(const TensorShape& shape, ByteSpan first, uint64_t first_tokens, ByteSpan second,
                 uint64_t second_tokens);

// Where the first byte differed from the snapshot.
struct Difference {
  uint32_t layer = 0;
  bool is_value = false;
  uint32_t head = 0;
  uint64_t position = 0;  // of the token
};

// Ranges of the running cache compared with the snapshot's rows, by hash, whenever bytes came out
// of the lossless path, and all that is held at the end.
struct ContentCheck {
  uint64_t ranges = 0, bytes = 0, mismatches = 0;
  std::optional<Difference> first;

  bool equal() const { return mismatches == 0; }
  void Add(const ContentCheck& other);
};

enum class RowOrder { kTokenHeadDim, kHeadTokenDim };
// Compares rows at these positions with the source's.
void CompareRows(const LayerKv& source, bool is_value, std::span<const uint32_t> positions,
                 ByteSpan rows, RowOrder order, ContentCheck& check);

}  // namespace kv::mnn::runtime
