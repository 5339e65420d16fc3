// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Growing and compacting the rows of a layer, and comparing them with the snapshot by hash.
#include "lib/engines/mnn/runtime/layer_cache.h"

#include <algorithm>
#include <cstring>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/core/snapshot/layout.h"

namespace kv::mnn::runtime {
namespace {

TensorShape ReadShape(const KvTensor& tensor) {
  return {tensor.dtype, tensor.heads, tensor.head_dim, tensor.unit_bytes()};
}

const KvTensor& FindTensor(const LayerKv& layer, bool is_value) {
  return is_value ? *layer.v : layer.k;
}

Bytes Reordered(const TensorShape& shape, ByteSpan from, uint64_t tokens, Order from_order,
                Order to_order) {
  Bytes to(from.size());
  Reorder(from, from_order, to, to_order, tokens, shape.heads, shape.head_dim, shape.element_bytes);
  return to;
}

// Returns rows of the source at ascending positions, [token][head][dim].
Bytes SourceRows(const KvTensor& tensor, std::span<const uint32_t> positions) {
  Bytes rows(positions.size() * tensor.row_bytes());
  for (size_t i = 0; i < positions.size();) {
    size_t run = 1;
    while (i + run < positions.size() && positions[i + run] == positions[i] + run) ++run;
    kv::Gather(tensor, positions[i], run, 0, tensor.heads, Order::kTokenHeadDim,
               std::span(rows).subspan(i * tensor.row_bytes(), run * tensor.row_bytes()));
    i += run;
  }
  return rows;
}

}  // namespace

uint64_t RangeBytes::size() const {
  uint64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor == nullptr ? 0 : tensor->size();
  return sum;
}

LayerCache::LayerCache(const LayerKv& source, uint64_t expand_tokens)
    : source_(&source), expand_tokens_(expand_tokens) {
  shapes_[0] = ReadShape(source.k);
  if (source.v) shapes_[1] = ReadShape(*source.v);
}

void LayerCache::Append(uint64_t begin, uint64_t end) {
  if (end <= begin) return;
  const uint64_t before = size(), count = end - begin;
  for (uint64_t p = begin; p < end; ++p) positions_.push_back(static_cast<uint32_t>(p));
  if (size() > capacity_) {
    capacity_ = size() + expand_tokens_;
    for (const bool is_value : {false, true}) {
      rows_[is_value].reserve(capacity_ * shapes_[is_value].row_bytes());
    }
  }
  for (const bool is_value : {false, true}) {
    if (is_value && !has_values()) continue;
    const KvTensor& tensor = FindTensor(*source_, is_value);
    const uint64_t row = tensor.row_bytes();
    rows_[is_value].resize(size() * row);
    kv::Gather(tensor, begin, count, 0, tensor.heads, Order::kTokenHeadDim,
               std::span(rows_[is_value]).subspan(before * row, count * row));
  }
}

void LayerCache::Compact(const KeepPlan& kept) {
  KV_ASSERT(IsApplicable(kept, size()));
  uint64_t to = 0;
  for (const KeepRange& range : kept) {
    std::copy_n(positions_.begin() + range.begin, range.count,
                positions_.begin() + static_cast<std::ptrdiff_t>(to));
    for (const bool is_value : {false, true}) {
      const uint64_t row = shapes_[is_value].row_bytes();
      if (row == 0) continue;
      std::byte* rows = rows_[is_value].data();
      std::memmove(rows + to * row, rows + range.begin * row, range.count * row);
    }
    to += range.count;
  }
  positions_.resize(to);
  for (const bool is_value : {false, true}) {
    rows_[is_value].resize(to * shapes_[is_value].row_bytes());
  }
}

void LayerCache::PopFront(uint64_t tokens) {
  KV_ASSERT(tokens <= size());
  positions_.erase(positions_.begin(), positions_.begin() + static_cast<std::ptrdiff_t>(tokens));
  capacity_ = size();
  for (const bool is_value : {false, true}) {
    const uint64_t row = shapes_[is_value].row_bytes();
    Bytes rest;
    rest.reserve(capacity_ * row);
    rest.insert(rest.end(), rows_[is_value].begin() + static_cast<std::ptrdiff_t>(tokens * row),
                rows_[is_value].end());
    rows_[is_value] = std::move(rest);
  }
}

LayerCache LayerCache::TakeFront(uint64_t tokens) {
  KV_ASSERT(tokens <= size());
  LayerCache front(*source_, expand_tokens_);
  front.positions_.assign(positions_.begin(),
                          positions_.begin() + static_cast<std::ptrdiff_t>(tokens));
  front.capacity_ = tokens;
  for (const bool is_value : {false, true}) {
    const auto end = static_cast<std::ptrdiff_t>(tokens * shapes_[is_value].row_bytes());
    front.rows_[is_value].assign(rows_[is_value].begin(), rows_[is_value].begin() + end);
  }
  PopFront(tokens);
  return front;
}

void LayerCache::Zero(uint64_t begin, uint64_t tokens) {
  KV_ASSERT(begin + tokens <= size());
  for (const bool is_value : {false, true}) {
    const uint64_t row = shapes_[is_value].row_bytes();
    if (row != 0) std::memset(rows_[is_value].data() + begin * row, 0, tokens * row);
  }
}

bool LayerCache::FlipBitOfLast() {
  if (rows_[0].empty()) return false;
  rows_[0].back() ^= std::byte{1};
  return true;
}

RangeBytes LayerCache::Gather(uint64_t begin, uint64_t tokens) const {
  KV_ASSERT(begin + tokens <= size());
  RangeBytes range;
  for (const bool is_value : {false, true}) {
    if (is_value && !has_values()) continue;
    const TensorShape& shape = shapes_[is_value];
    const ByteSpan rows =
        ByteSpan(rows_[is_value]).subspan(begin * shape.row_bytes(), tokens * shape.row_bytes());
    range.tensors[is_value] = std::make_shared<const Bytes>(
        Reordered(shape, rows, tokens, Order::kTokenHeadDim, Order::kHeadTokenDim));
  }
  return range;
}

void LayerCache::Scatter(bool is_value, uint64_t begin, uint64_t tokens, ByteSpan from) {
  const TensorShape& shape = shapes_[is_value];
  KV_ASSERT(begin + tokens <= size() && from.size() == tokens * shape.row_bytes());
  const Bytes rows = Reordered(shape, from, tokens, Order::kHeadTokenDim, Order::kTokenHeadDim);
  if (rows.empty()) return;
  std::memcpy(rows_[is_value].data() + begin * shape.row_bytes(), rows.data(), rows.size());
}

CachePiece LayerCache::Piece(bool is_value) const {
  const TensorShape& shape = shapes_[is_value];
  return {0, size(), rows_[is_value].data(), shape.row_bytes(), shape.head_bytes()};
}

void LayerCache::Compare(uint64_t begin, uint64_t tokens, ContentCheck& check) const {
  for (const bool is_value : {false, true}) {
    if (is_value && !has_values()) continue;
    const uint64_t row = shapes_[is_value].row_bytes();
    CompareRows(*source_, is_value, positions().subspan(begin, tokens),
                ByteSpan(rows_[is_value]).subspan(begin * row, tokens * row), Order::kTokenHeadDim,
                check);
  }
}

void ContentCheck::Add(const ContentCheck& other) {
  ranges += other.ranges;
  bytes += other.bytes;
  mismatches += other.mismatches;
  if (!first) first = other.first;
}

void CompareRows(const LayerKv& source, bool is_value, std::span<const uint32_t> positions,
                 ByteSpan rows, Order order, ContentCheck& check) {
  if (positions.empty()) return;
  const KvTensor& tensor = FindTensor(source, is_value);
  const TensorShape shape = ReadShape(tensor);
  Bytes theirs = SourceRows(tensor, positions);
  KV_ASSERT(theirs.size() == rows.size());
  if (order == Order::kHeadTokenDim) {
    theirs = Reordered(shape, theirs, positions.size(), Order::kTokenHeadDim, Order::kHeadTokenDim);
  }
  ++check.ranges;
  check.bytes += rows.size();
  if (Hash64(theirs) == Hash64(rows)) return;
  ++check.mismatches;
  if (check.first) return;
  const auto at = static_cast<uint64_t>(
      std::mismatch(rows.begin(), rows.end(), theirs.begin()).first - rows.begin());
  const uint64_t unit = at / shape.head_bytes();
  const bool by_token = order == Order::kTokenHeadDim;
  const uint64_t head = by_token ? unit % shape.heads : unit / positions.size();
  const uint64_t token = by_token ? unit / shape.heads : unit % positions.size();
  check.first = Difference{source.index, is_value, static_cast<uint32_t>(head), positions[token]};
}

}  // namespace kv::mnn::runtime
