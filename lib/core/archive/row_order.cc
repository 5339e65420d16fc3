// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/row_order.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lib/core/base/error.h"

namespace kv {
namespace {

// Eight bytes each; those of a long cache come back for K and V of every layer.
constexpr uint64_t kMostMadeRows = 1 << 20;
// Sorts before every sequence.
constexpr int64_t kNoSequence = INT64_MIN;

int64_t SmallestOf(const SequenceIds& sequences) {
  return sequences.empty() ? kNoSequence : *std::min_element(sequences.begin(), sequences.end());
}

}  // namespace

void RowOrder::Apply(ByteSpan raw, std::span<std::byte> ordered) const {
  const uint64_t row_bytes = raw.size() / rows.size();
  KV_ASSERT(row_bytes * rows.size() == raw.size() && ordered.size() == raw.size());
  std::byte* to = ordered.data();
  for (const uint32_t row : rows) {
    std::memcpy(to, raw.data() + row * row_bytes, row_bytes);
    to += row_bytes;
  }
}

void RowOrder::Undo(ByteSpan ordered, std::span<std::byte> raw) const {
  const uint64_t row_bytes = raw.size() / rows.size();
  KV_ASSERT(row_bytes * rows.size() == raw.size() && ordered.size() == raw.size());
  const std::byte* from = ordered.data();
  for (const uint32_t row : rows) {
    std::memcpy(raw.data() + row * row_bytes, from, row_bytes);
    from += row_bytes;
  }
}

RowOrders::RowOrders(const Snapshot& snapshot) {
  for (const CellGroup& group : snapshot.cell_groups) {
    std::vector<Place>& places = groups_.emplace_back();
    places.reserve(group.cells.size());
    for (const Cell& cell : group.cells)
      places.push_back({cell.stream, SmallestOf(cell.sequences), cell.position});
    for (size_t i = 1; i < places.size(); ++i) {
      const Place &before = places[i - 1], &here = places[i];
      all_in_order_ &=
          before.stream == here.stream && before.sequence == here.sequence &&
          static_cast<uint64_t>(here.position) == static_cast<uint64_t>(before.position) + 1;
    }
  }
  for (const LayerKv& layer : snapshot.layers) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      const bool is_its = groups_.size() == 1 || snapshot.cell_groups[i].group == layer.group;
      if (is_its && groups_[i].size() == layer.k.tokens()) group_of_.emplace(layer.index, i);
      if (is_its) break;
    }
  }
}

std::shared_ptr<const RowOrder> RowOrders::Of(uint32_t layer, uint64_t begin,
                                              uint64_t count) const {
  const auto group = group_of_.find(layer);
  if (group == group_of_.end() || count == 0) return nullptr;
  const std::vector<Place>& places = groups_[group->second];
  if (begin > places.size() || count > places.size() - begin) return nullptr;
  const Key key{group->second, begin, count};
  {
    const std::lock_guard lock(mutex_);
    const auto at = made_.find(key);
    if (at != made_.end()) return at->second;
  }
  const Place* first = places.data() + begin;
  const auto order = std::make_shared<RowOrder>();
  order->rows.resize(count);
  std::iota(order->rows.begin(), order->rows.end(), 0u);
  std::stable_sort(order->rows.begin(), order->rows.end(),
                   [&](uint32_t a, uint32_t b) { return first[a] < first[b]; });
  order->steps.reserve(count);
  const auto start = static_cast<uint32_t>(first[order->rows[0]].position);
  for (size_t i = 0; i < count; ++i) {
    order->steps.push_back(static_cast<uint32_t>(first[order->rows[i]].position) - start);
    order->moves |= order->rows[i] != i;
    order->jumps |= i > 0 && order->steps[i] - order->steps[i - 1] != 1;
  }
  const std::lock_guard lock(mutex_);
  if (made_rows_ + count > kMostMadeRows) {
    made_.clear();
    made_rows_ = 0;
  }
  if (made_.emplace(key, order).second) made_rows_ += count;
  return order;
}

NeighbourChunk OrderedNeighbours::Read(const Neighbour& neighbour) const {
  NeighbourChunk chunk = neighbours_.Read(neighbour);
  if (order_ == nullptr || chunk.raw->size() % order_->rows.size() != 0) return chunk;
  auto ordered = std::make_shared<Bytes>(chunk.raw->size());
  order_->Apply(*chunk.raw, *ordered);
  chunk.raw = std::move(ordered);
  return chunk;
}

}  // namespace kv
