// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The codec for engines that store pages themselves: bounded outputs, blocks, planes and tables.
#include "lib/api/batch.h"
#include "lib/core/codec/planes/planes.h"

namespace kv::api {
namespace {

WordPlanes PlanesOfType(uint8_t dtype, size_t n) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = dtype;
  desc.order = KVT_ORDER_UNKNOWN;
  return ChoosePlanes(MakeDescription(&desc).dtype, n);
}

// Writes the blocks of a segment from `index` on, and advances `index`.
void PutBlocks(const BlockSegment& segment, const Elements<kvt_block>& room, size_t& index) {
  uint64_t planes_offset = segment.raw_offset;
  for (const PlaneBlock& block : segment.planes.blocks) {
    kvt_block entry = {};
    entry.offset = segment.offset + block.offset;
    entry.planes_offset = planes_offset;
    entry.bytes = block.bytes;
    entry.raw_bytes = block.raw_bytes;
    entry.segment_offset = segment.raw_offset;
    entry.segment_bytes = segment.raw_bytes;
    entry.planes = static_cast<uint8_t>(segment.planes.split.count);
    entry.rotated = segment.planes.split.rotated ? 1 : 0;
    room.Put(index++, entry);
    planes_offset += block.raw_bytes;
  }
}

}  // namespace
}  // namespace kv::api

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

kvt_status kvt_codec_caps(kvt_caps* out) {
  return Caught(nullptr, [&] {
    RequireSize(out, "out->struct_size");
    kvt_caps caps = {};
    caps.lossless = 1;
    caps.needs_positions = 0;
    caps.page_tokens = 1;
    caps.head_shards = 1;
    caps.alignment = 1;
    caps.frame_overhead = kFrameHeaderBytes;
    caps.most_table_page_bytes = kMaxSegmentBytes;
    caps.block_bytes = kPlaneBlockBytes;
    caps.block_alignment = kPlaneBlockAlignment;
    Fill(out, caps);
  });
}

kvt_status kvt_ctx_use_blocks(kvt_ctx* ctx, int blocks) {
  return Call(ctx, [&] {
    Require(blocks == 0 || blocks == 1, "blocks");
    ctx->coder.UseBlocks(blocks != 0);
  });
}

kvt_status kvt_encode_within(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                             void* dst, size_t cap, size_t* written) {
  return Call(ctx, [&] {
    if (written != nullptr) *written = 0;
    const ByteSpan raw = Span(src, n);
    const std::span<std::byte> frame = Span(dst, cap);
    RequireApart(raw, frame, "src and dst overlap");
    RequireWithinLimit(ctx, n);
    ctx->coder.UsePool(FindPool(ctx));
    uint64_t needed = 0;
    const Clock::time_point start = Clock::now();
    const uint64_t size = ctx->coder.EncodeWithin(MakeDescription(desc), raw, frame, &needed);
    if (written != nullptr) *written = static_cast<size_t>(size != 0 ? size : needed);
    if (size == 0) {
      throw Error(Finding::kOutputTooSmall, "the frame takes about {} bytes, the buffer has {}",
                  needed, cap);
    }
    CountEncoded(ctx, start, n, size, size == FrameBound(n));
  });
}

kvt_status kvt_frame_blocks(const void* src, size_t n, kvt_block* out, size_t cap, size_t* count) {
  return Caught(nullptr, [&] {
    Require(count != nullptr, "count");
    *count = 0;
    const Elements<kvt_block> room(out, cap, "out->struct_size");
    const ByteSpan frame = Span(src, n);
    RequireApart(frame, {reinterpret_cast<std::byte*>(out), room.bytes()}, "src and out overlap");
    const std::vector<BlockSegment> segments = ListBlocks(frame);
    for (const BlockSegment& segment : segments) *count += segment.planes.blocks.size();
    if (out == nullptr) return;
    if (*count > cap) {
      throw Error(Finding::kOutputTooSmall, "the frame has {} blocks, the list has room for {}",
                  *count, cap);
    }
    size_t index = 0;
    for (const BlockSegment& segment : segments) PutBlocks(segment, room, index);
  });
}

kvt_status kvt_planes_split(uint8_t dtype, const void* src, size_t n, void* dst) {
  return Caught(nullptr, [&] {
    const ByteSpan raw = Span(src, n);
    const std::span<std::byte> planes = Span(dst, n);
    RequireApart(raw, planes, "src and dst overlap");
    SplitWords(PlanesOfType(dtype, n), raw, planes);
  });
}

kvt_status kvt_planes_join(uint8_t dtype, const void* src, size_t n, void* dst) {
  return Caught(nullptr, [&] {
    const ByteSpan planes = Span(src, n);
    const std::span<std::byte> raw = Span(dst, n);
    RequireApart(planes, raw, "src and dst overlap");
    JoinWords(PlanesOfType(dtype, n), planes, raw);
  });
}

kvt_status kvt_encode_table(kvt_ctx* ctx, const kvt_table* table) {
  return CallBatch(ctx, {0, KVT_ENCODE_TABLE, nullptr, 0, table, nullptr});
}

kvt_status kvt_decode_table(kvt_ctx* ctx, const kvt_table* table) {
  return CallBatch(ctx, {0, KVT_DECODE_TABLE, nullptr, 0, table, nullptr});
}
