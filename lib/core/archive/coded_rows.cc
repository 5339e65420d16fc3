// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/coded_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/core/codec/halves.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

// Limit on the rows of all cached orders, at eight bytes each. K and V of all layers share the
// order of a long cache.
constexpr uint64_t kMostMadeRows = 1 << 20;
// Cells without a sequence sort before those of every sequence.
constexpr int64_t kNoSequence = INT64_MIN;

int64_t FindSmallest(const SequenceIds& sequences) {
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
      places.push_back({cell.stream, FindSmallest(cell.sequences), cell.position});
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

uint32_t RowOrders::FindPosition(uint32_t layer, uint64_t token) const {
  const auto group = group_of_.find(layer);
  const bool known = group != group_of_.end() && token < groups_[group->second].size();
  return static_cast<uint32_t>(known ? static_cast<uint64_t>(groups_[group->second][token].position)
                                     : token);
}

NeighbourChunk OrderedNeighbours::Read(const Neighbour& neighbour) const {
  NeighbourChunk chunk = neighbours_.Read(neighbour);
  if (order_ == nullptr || chunk.raw->size() % order_->rows.size() != 0) return chunk;
  auto ordered = std::make_shared<Bytes>(chunk.raw->size());
  order_->Apply(*chunk.raw, *ordered);
  chunk.raw = std::move(ordered);
  return chunk;
}

namespace {

// Returns true if coding head by head may pay: for short chunks of halves whose values repeat, and
// for blocks also in long chunks at slow levels. For the shortest chunks even a few header bytes
// count.
bool WantsHeadsApart(const ChunkHead& head, const EncodedChunk& best, Effort effort) {
  constexpr uint64_t kShort = 64 << 10, kShortest = 8 << 10;
  if (head.kind == ChunkKind::kOpaque || head.order != Order::kTokenHeadDim || head.by_cells ||
      !head.heads_known || head.heads < 2 || head.shares_extent() || effort < Effort::kDefault) {
    return false;
  }
  if (IsBlockQuantised(head.dtype)) return effort > Effort::kDefault || head.raw_bytes <= kShort;
  return effort < Effort::kMax && head.raw_bytes <= (best.by_matches ? kShort : kShortest);
}

}  // namespace

ChunkHead HeadOfRows(bool is_value, const ChunkShape& shape, bool heads_known) {
  ChunkHead head;
  head.kind = is_value ? ChunkKind::kValue : ChunkKind::kKey;
  head.dtype = shape.dtype;
  head.order = head.source_order = shape.order;
  head.heads_known = heads_known;
  head.tokens = head.extent_tokens = shape.tokens;
  head.heads = shape.heads;
  head.units = static_cast<uint32_t>(shape.units_per_head);
  head.unit_bytes = Info(shape.dtype).block_bytes;
  head.raw_bytes = head.extent_bytes = shape.tokens * head.heads * head.units * head.unit_bytes;
  return head;
}

// Levels below the default do not look at other rows, so an order is useless to them.
bool WantsOrder(const ChunkHead& head, const RowOrder& order, Effort effort) {
  const bool floats = AreHalves(head.dtype) || head.dtype == DType::kF32;
  if (!floats || head.order != Order::kTokenHeadDim || effort < Effort::kDefault) return false;
  // Positions tell codecs how far keys are rotated: level high uses that for keys, level max also
  // for V, which it predicts from K.
  const bool rotates =
      effort >= Effort::kMax || (effort >= Effort::kHigh && head.kind == ChunkKind::kKey);
  return order.moves || (order.jumps && rotates);
}

std::span<std::byte> TryHeadsApart(ChunkHead& head, ByteSpan raw, Effort effort,
                                   CodecScratch& scratch, EncodedChunk& best) {
  if (!WantsHeadsApart(head, best, effort)) return {};
  const std::span<std::byte> apart = scratch.ordered.Get(raw.size()).first(raw.size());
  Reorder(raw, head.order, apart, Order::kHeadTokenDim, head.tokens, head.heads, head.units,
          head.unit_bytes);
  ChunkShape shape = head.shape();
  shape.order = Order::kHeadTokenDim;
  EncodedChunk coded = EncodeChunk(shape, apart, Effort::kCompat, scratch);
  const bool smaller = coded.payload.size() < best.payload.size();
  if (smaller) {
    std::swap(coded, best);
    head.order = shape.order;
  }
  scratch.Recycle(std::move(coded.payload));
  return smaller ? apart : std::span<std::byte>();
}

EncodedChunk EncodeRows(ChunkHead& head, ByteSpan raw, const RowOrder* order, Effort effort,
                        CodecScratch& scratch, const Profile* profile) {
  head.by_cells = order != nullptr && WantsOrder(head, *order, effort);
  ByteSpan coded = raw;
  if (head.by_cells) {
    const std::span<std::byte> ordered = scratch.ordered.Get(raw.size()).first(raw.size());
    order->Apply(raw, ordered);
    coded = ordered;
  }
  const InnerEncoder own =
      EncoderAt(effort, scratch, head.by_cells ? RowSteps(order->steps) : RowSteps());
  const ProfilePlace place{.layer = head.layer, .is_value = head.kind == ChunkKind::kValue};
  EncodedChunk best = profile == nullptr ? own(head.shape(), coded)
                                         : EncodeWithProfile(*profile, place, head.shape(), coded,
                                                             effort, scratch, own);
  TryHeadsApart(head, raw, effort, scratch, best);
  return best;
}

void DecodeRows(CodecId codec, const ChunkHead& head, ByteSpan payload, const RowOrder* order,
                std::span<std::byte> raw, CodecScratch& scratch, ChunkInputs inputs) {
  if (order == nullptr) return DecodeChunk(codec, head.shape(), payload, raw, scratch, inputs);
  inputs.steps = RowSteps(order->steps);
  const std::span<std::byte> ordered = scratch.ordered.Get(raw.size()).first(raw.size());
  DecodeChunk(codec, head.shape(), payload, ordered, scratch, inputs);
  order->Undo(ordered, raw);
}

}  // namespace kv
