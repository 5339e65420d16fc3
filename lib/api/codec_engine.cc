// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The codec for engines that keep pages themselves: rooms, blocks, planes and tables.
#include <algorithm>

#include "lib/api/context.h"
#include "lib/api/structs.h"
#include "lib/core/codec/planes/planes.h"

namespace kv::api {
namespace {

WordPlanes PlanesOfType(uint8_t dtype, size_t n) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = dtype;
  desc.order = KVT_ORDER_UNKNOWN;
  return ChoosePlanes(DescriptionOf(&desc).dtype, n);
}

// The pages of a table, whose memory was checked.
class Pages {
 public:
  // Throws kBadArgument for memory that overlaps what the call writes. `decode` writes the pages.
  Pages(kvt_ctx* ctx, const kvt_table& table, bool decode)
      : table_(table), entries_(table.entries, table.count, "table->entries->struct_size") {
    entries_.RequireEqualSizes("table->entries->struct_size");
    Require(table.reserved == 0, "table->reserved");
    Require(table.count == 0 || table.desc != nullptr, "table->desc");
    Require(table.stride >= table.page_bytes, "table->stride");
    const ByteSpan pages = All(table.pages, table.page_count, table.stride, "table->pages");
    const ByteSpan data = All(table.data, table.count, table.room, "table->data");
    const ByteSpan entries = Span(static_cast<const void*>(table.entries), entries_.bytes());
    const ByteSpan index = All(table.index, table.index == nullptr ? 0 : table.count,
                               sizeof *table.index, "table->index");
    RequireApart(pages, data, "the pages and the data overlap");
    RequireApart(entries, data, "the entries and the data overlap");
    RequireApart(entries, pages, "the entries and the pages overlap");
    RequireApart(index, decode ? pages : data, "the index overlaps what the call writes");
    RequireApart(index, entries, "the index and the entries overlap");
    RequireWithinLimit(ctx, table.page_bytes);
    if (table.index == nullptr) {
      Require(table.count <= table.page_count, "table->count");
      return;
    }
    for (size_t i = 0; i < table.count; ++i)
      Require(table.index[i] < table.page_count, "table->index");
    if (decode) RequireDistinct(ctx);
  }

  std::span<std::byte> Page(size_t i) const {
    const size_t place = table_.index == nullptr ? i : table_.index[i];
    return {static_cast<std::byte*>(table_.pages) + place * table_.stride, table_.page_bytes};
  }
  kvt_entry& Entry(size_t i) const { return *entries_.At(i); }
  std::span<std::byte> Data(size_t i) const {
    return {static_cast<std::byte*>(table_.data) + i * table_.room, table_.room};
  }

 private:
  static ByteSpan All(const void* begin, size_t count, size_t step, std::string_view what) {
    return Span(begin, CheckedProduct(count, step, what));
  }
  // Throws kBadArgument where two entries name one page.
  void RequireDistinct(kvt_ctx* ctx) const {
    std::vector<kvt_ctx::BatchRange>& ranges = ctx->batch_ranges;
    ranges.clear();
    for (size_t i = 0; i < table_.count; ++i) ranges.push_back({table_.index[i], 0, i, true});
    std::ranges::sort(ranges, {}, &kvt_ctx::BatchRange::begin);
    const auto same = std::ranges::adjacent_find(ranges, {}, &kvt_ctx::BatchRange::begin);
    Require(same == ranges.end(), "table->index names a page twice");
  }

  const kvt_table& table_;
  Elements<kvt_entry> entries_;
};

// Passes every page to `one`. The first failure in the order of the entries is the call's.
template <typename F>
void ForEachEntry(kvt_ctx* ctx, const Pages& pages, size_t count, F&& one) {
  FirstFailure first;
  const auto run = [&](uint64_t number) {
    const auto index = static_cast<size_t>(number);
    const Reuse<kvt_ctx::BatchWorker>::Lease worker(ctx->batch_workers);
    kvt_ctx::LastError error;
    const kvt_status status = Caught(&error, [&] {
      ctx->state.StopIfCancelled();
      one(index, PrepareCoder(ctx, *worker));
    });
    pages.Entry(index).status = status;
    if (status != 0) first.Note(index, error);
  };
  ThreadPool* pool = PoolOf(ctx);
  if (pool != nullptr && count > 1) {
    pool->ParallelFor(count, run);
  } else {
    for (size_t index = 0; index < count; ++index) run(index);
  }
  first.ThrowIfAny();
}

// Writes the blocks of a segment from `index` on, which ends behind them.
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
    ctx->coder.UsePool(PoolOf(ctx));
    uint64_t needed = 0;
    const Clock::time_point start = Clock::now();
    const uint64_t size = ctx->coder.EncodeWithin(DescriptionOf(desc), raw, frame, &needed);
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
      throw Error(Finding::kOutputTooSmall, "the frame has {} blocks, the list room for {}", *count,
                  cap);
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
  return Call(ctx, [&] {
    const kvt_table whole = Whole(table, "table->struct_size");
    const Pages pages(ctx, whole, false);
    if (whole.count == 0) return;
    const FrameDescription description = DescriptionOf(whole.desc);
    ForEachEntry(ctx, pages, whole.count, [&](size_t i, FrameCoder& coder) {
      PageEntry entry;
      const Clock::time_point start = Clock::now();
      const bool fits = coder.EncodePage(description, pages.Page(i), pages.Data(i), entry);
      kvt_entry& out = pages.Entry(i);
      out.bytes = entry.bytes;
      out.codec = static_cast<uint32_t>(entry.codec);
      out.raw_hash = entry.raw_hash;
      if (!fits) {
        throw Error(Finding::kOutputTooSmall, "page {} takes {} bytes, its room has {}", i,
                    entry.bytes, whole.room);
      }
      CountEncoded(ctx, start, whole.page_bytes, entry.bytes, entry.codec == CodecId::kRaw);
    });
  });
}

kvt_status kvt_decode_table(kvt_ctx* ctx, const kvt_table* table) {
  return Call(ctx, [&] {
    const kvt_table whole = Whole(table, "table->struct_size");
    const Pages pages(ctx, whole, true);
    if (whole.count == 0) return;
    const FrameDescription description = DescriptionOf(whole.desc);
    ForEachEntry(ctx, pages, whole.count, [&](size_t i, FrameCoder& coder) {
      const kvt_entry& in = pages.Entry(i);
      Require(in.codec <= 0xff, "table->entries: codec");
      Counted(ctx, [&] {
        coder.DecodePage(description, {in.bytes, static_cast<CodecId>(in.codec), in.raw_hash},
                         pages.Data(i), pages.Page(i));
        return true;
      });
    });
  });
}
