// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/coded_rows.h"

#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

// In short chunks, of halves where values come back; of blocks in long ones, too, at levels that
// have the time. Of the shortest chunks, a few bytes in the headers count.
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

// Levels below the default look at no other rows.
bool WantsOrder(const ChunkHead& head, const RowOrder& order, Effort effort) {
  const bool floats =
      head.dtype == DType::kF16 || head.dtype == DType::kBF16 || head.dtype == DType::kF32;
  if (!floats || head.order != Order::kTokenHeadDim || effort < Effort::kDefault) return false;
  // Positions say how far keys are turned, to levels that look for it, and at max values are coded
  // by keys.
  const bool turns =
      effort >= Effort::kMax || (effort >= Effort::kHigh && head.kind == ChunkKind::kKey);
  return order.moves || (order.jumps && turns);
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
                        CodecScratch& scratch) {
  head.by_cells = order != nullptr && WantsOrder(head, *order, effort);
  if (head.by_cells) {
    const std::span<std::byte> ordered = scratch.ordered.Get(raw.size()).first(raw.size());
    order->Apply(raw, ordered);
    return EncodeChunk(head.shape(), ordered, effort, scratch, RowSteps(order->steps));
  }
  EncodedChunk best = EncodeChunk(head.shape(), raw, effort, scratch);
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
