// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/checked.h"

namespace kv::kvz {
namespace {

// Shared extents are gathered and restored as a whole, so they bound the memory that a transposed V
// takes on both sides, however long the context is.
constexpr uint64_t kExtentTarget = 16 << 20;

ChunkHead TensorHead(const Region& region, Effort effort) {
  ChunkHead head;
  head.file = static_cast<uint32_t>(region.file);
  head.layer = region.layer;
  head.kind = region.is_value ? ChunkKind::kValue : ChunkKind::kKey;
  head.dtype = region.dtype;
  const bool by_head = region.heads_known && effort == Effort::kCompat;
  head.order = by_head ? Order::kHeadTokenDim : Order::kTokenHeadDim;
  head.source_order = region.order;
  head.heads_known = region.heads_known;
  head.heads = region.heads;
  head.units = region.head_dim / Info(region.dtype).block_elements;
  head.unit_bytes = Info(region.dtype).block_bytes;
  return head;
}

}  // namespace

Planner::Planner(std::vector<uint64_t> sizes, const std::vector<Region>& regions,
                 uint64_t chunk_bytes, Effort effort)
    : sizes_(std::move(sizes)), regions_(regions), chunk_bytes_(chunk_bytes), effort_(effort) {}

std::optional<ChunkHead> Planner::Next() {
  while (taken_ == ready_.size()) {
    ready_.clear();
    taken_ = 0;
    if (file_ == sizes_.size()) return std::nullopt;
    const uint64_t size = sizes_[file_];
    if (region_ < regions_.size() && regions_[region_].file == file_) {
      const Region& region = regions_[region_];
      const uint64_t carried = region.order == Order::kStorage ? 0 : kMaxLeadBytes;
      if (position_ + carried < region.offset) {
        PlanOpaque(region.offset - position_, DType::kU8);
      } else {
        PlanRegion(region);
        ++region_;
      }
    } else if (position_ < size) {
      PlanOpaque(size - position_, DType::kU8);
    } else {
      ++file_;
      position_ = 0;
    }
  }
  return ready_[taken_++];
}

void Planner::PlanOpaque(uint64_t size, DType dtype) {
  if (IsBlockQuantised(dtype)) dtype = DType::kU8;
  const uint64_t unit = Info(dtype).block_bytes,
                 step = std::max(chunk_bytes_ / unit, uint64_t{1}) * unit;
  // A long stretch is planned piece by piece: the list stays short.
  size = std::min(size, size < 2 * step ? size : step);
  ForEachPiece(size, step, [&](uint64_t, uint64_t count) {
    ChunkHead head;
    head.file = static_cast<uint32_t>(file_);
    head.dtype = dtype;
    head.raw_bytes = head.extent_bytes = count;
    head.source_offset = position_;
    ready_.push_back(head);
    position_ += count;
  });
}

void Planner::PlanRegion(const Region& region) {
  if (region.size == 0) return;
  const auto plan_elements = [&] {
    while (position_ < region.offset) PlanOpaque(region.offset - position_, DType::kU8);
    for (const uint64_t end = region.offset + region.size; position_ < end;) {
      PlanOpaque(end - position_, region.dtype);
    }
  };
  if (region.order == Order::kStorage) return plan_elements();
  const ChunkHead whole = TensorHead(region, effort_);
  const uint64_t unit_bytes = whole.unit_bytes;
  const uint64_t head_row = whole.units * unit_bytes;    // one token of one head
  const uint64_t row = head_row * whole.heads;           // one token
  const uint64_t head_bytes = head_row * region.tokens;  // one head
  KV_ASSERT(region.size == row * region.tokens);
  const uint64_t longest = region.order == Order::kTokenHeadDim   ? row
                           : region.order == Order::kHeadTokenDim ? head_row
                                                                  : region.tokens * unit_bytes;
  const uint64_t limit =
      region.order == Order::kHeadDimToken ? kMaxExtentBytes : kMaxChunkBytes / 2;
  if (longest > limit) return plan_elements();  // a single row is too long to be a unit of work

  const auto add = [&](ChunkHead head, uint64_t token, uint64_t tokens) {
    head.token_begin = region.token_begin + token;
    head.tokens = tokens;
    head.raw_bytes = tokens * head.heads * head.units * unit_bytes;
    if (head.shares_extent()) {
      head.extent_token_begin = token;
    } else {
      head.extent_tokens = tokens;
      head.extent_bytes = head.raw_bytes;
    }
    ready_.push_back(head);
  };
  const auto step_for = [&](uint64_t bytes) {
    return std::max<uint64_t>(1, chunk_bytes_ / std::max<uint64_t>(1, bytes));
  };

  if (region.order == Order::kTokenHeadDim) {
    ForEachPiece(region.tokens, step_for(row), [&](uint64_t token, uint64_t tokens) {
      ChunkHead head = whole;
      head.source_offset = region.offset + token * row;
      add(head, token, tokens);
    });
  } else if (region.order == Order::kHeadTokenDim) {
    // Whole heads while several fit a chunk, else token ranges of one head.
    ForEachPiece(whole.heads, step_for(head_bytes), [&](uint64_t first, uint64_t heads) {
      ChunkHead part = whole;
      part.head_begin = static_cast<uint32_t>(first);
      part.heads = static_cast<uint32_t>(heads);
      const uint64_t begin = region.offset + first * head_bytes;
      const uint64_t step = heads > 1 ? region.tokens : step_for(head_row);
      ForEachPiece(region.tokens, step, [&](uint64_t token, uint64_t tokens) {
        ChunkHead head = part;
        head.source_offset = begin + token * head_row;
        add(head, token, tokens);
      });
    });
  } else {
    // Extents of whole heads while several fit, else of some channels of one head; in each, tokens.
    ForEachPiece(whole.heads, std::max<uint64_t>(1, kExtentTarget / head_bytes),
                 [&](uint64_t first, uint64_t heads) {
                   const uint64_t channel = region.tokens * unit_bytes;
                   const uint64_t step =
                       heads > 1 ? whole.units : std::max<uint64_t>(1, kExtentTarget / channel);
                   ForEachPiece(whole.units, step, [&](uint64_t unit, uint64_t units) {
                     ChunkHead part = whole;
                     part.head_begin = static_cast<uint32_t>(first);
                     part.heads = static_cast<uint32_t>(heads);
                     part.unit_begin = static_cast<uint32_t>(unit);
                     part.units = static_cast<uint32_t>(units);
                     part.source_offset = region.offset + first * head_bytes + unit * channel;
                     part.extent_tokens = region.tokens;
                     part.extent_bytes = heads * units * channel;
                     ForEachPiece(
                         region.tokens, step_for(heads * units * unit_bytes),
                         [&](uint64_t token, uint64_t tokens) { add(part, token, tokens); });
                   });
                 });
  }
  ready_.front().lead.resize(region.offset - position_);
  position_ = region.offset + region.size;
}

}  // namespace kv::kvz
