// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/frame/frame.h"

#include <algorithm>
#include <ranges>

#include "lib/api/context.h"

namespace kv::api {
namespace {

Hash128Bytes HashOf(const uint8_t bytes[16]) {
  Hash128Bytes hash;
  std::memcpy(hash.data(), bytes, hash.size());
  return hash;
}

uint64_t EncodeOne(kvt_ctx* ctx, FrameCoder& coder, const kvt_desc* desc, ByteSpan raw,
                   std::span<std::byte> out, uint64_t* needed) {
  RequireWithinLimit(ctx, raw.size());
  const Clock::time_point start = Clock::now();
  const uint64_t size = coder.Encode(DescriptionOf(desc), raw, out, needed);
  CountEncoded(ctx, start, raw.size(), size, size == FrameBound(raw.size()));
  return size;
}

FrameHeader DecodeOne(kvt_ctx* ctx, FrameCoder& coder, ByteSpan frame, const Hash128Bytes* context,
                      std::span<std::byte> raw) {
  RequireWithinLimit(ctx, raw.size());
  return Counted(ctx, [&] { return coder.Decode(frame, context, raw); });
}

// Sets the status of each item: KV0010 if a buffer of it overlaps one that the batch writes, else
// 0. The batch also writes its items, and reads their descriptions and lists of pieces. Ranges are
// compared with their neighbours by address, so that n buffers cost n log n.
void RefuseOverlaps(kvt_ctx* ctx, const Elements<kvt_item>& items, bool writes_frames) {
  std::vector<kvt_ctx::BatchRange>& ranges = ctx->batch_ranges;
  ranges.clear();
  const auto add = [&](const void* data, size_t bytes, size_t item, bool is_written) {
    if (data == nullptr || bytes == 0) return;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t end = begin + std::min<size_t>(bytes, UINTPTR_MAX - begin);
    ranges.push_back({begin, end, item, is_written});
  };
  constexpr size_t kNoItem = SIZE_MAX;
  add(items.At(0), items.bytes(), kNoItem, true);
  for (size_t i = 0; i < items.size(); ++i) {
    const kvt_item item = items[i];
    items.At(i)->status = 0;
    if (item.desc != nullptr) add(item.desc, kFirstSize<kvt_desc>, i, false);
    add(item.frame, item.frame_bytes, i, writes_frames);
    if (!Elements<const kvt_piece>::Holds(item.pieces, item.piece_count))
      continue;  // refused later
    const Elements<const kvt_piece> pieces(item.pieces, item.piece_count, "item->pieces");
    add(item.pieces, pieces.bytes(), i, false);
    for (size_t p = 0; p < pieces.size(); ++p)
      add(pieces[p].data, pieces[p].bytes, i, !writes_frames);
  }
  std::ranges::sort(ranges, {}, &kvt_ctx::BatchRange::begin);
  const auto refuse = [&](size_t item) {
    if (item != kNoItem) items.At(item)->status = StatusOf(Finding::kBadArgument);
  };
  // Where the ranges before this one end, and then where those after it begin.
  uintptr_t any = 0, written = 0;
  for (const kvt_ctx::BatchRange& range : ranges) {
    if (range.begin < (range.is_written ? any : written)) refuse(range.item);
    any = std::max(any, range.end);
    if (range.is_written) written = std::max(written, range.end);
  }
  any = written = UINTPTR_MAX;
  for (const kvt_ctx::BatchRange& range : std::views::reverse(ranges)) {
    if ((range.is_written ? any : written) < range.end) refuse(range.item);
    any = range.begin;
    if (range.is_written) written = range.begin;
  }
}

// Returns the raw object of an item: its only piece, or `memory` of the size of all pieces.
std::span<std::byte> RawOf(const kvt_item& item, Bytes& memory) {
  const auto pieces = GivenElements(item.pieces, item.piece_count, "item->pieces");
  if (pieces.size() == 1) return Span(pieces[0].data, pieces[0].bytes);
  size_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Require(!__builtin_add_overflow(bytes, pieces[i].bytes, &bytes), "item->pieces");
  }
  memory.resize(bytes);
  return memory;
}

// Copies between the raw object and its pieces, unless it is its only piece.
template <typename F>
void ForEachPiece(const kvt_item& item, std::span<std::byte> raw, F&& copy) {
  if (item.piece_count == 1) return;
  const Elements<const kvt_piece> pieces(item.pieces, item.piece_count, "item->pieces");
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::span<std::byte> piece = Span(pieces[i].data, pieces[i].bytes);
    copy(piece, raw.first(piece.size()));
    raw = raw.subspan(piece.size());
  }
}

void Gather(const kvt_item& item, std::span<std::byte> raw) {
  ForEachPiece(item, raw, [](auto piece, auto part) { std::ranges::copy(piece, part.begin()); });
}

void Scatter(std::span<std::byte> raw, const kvt_item& item) {
  ForEachPiece(item, raw, [](auto piece, auto part) { std::ranges::copy(part, piece.begin()); });
}

// Passes every item to `one`, each on one thread, or a single item on all of them. The first
// failure in the order of the items is that of the call.
template <typename F>
void ForEachItem(kvt_ctx* ctx, kvt_item* given, size_t count, bool writes_frames, F&& one) {
  const Elements<kvt_item> items(given, count, "items");
  items.RequireEqualSizes("items->struct_size");
  if (count == 0) return;
  RefuseOverlaps(ctx, items, writes_frames);
  FirstFailure first;
  const auto run = [&](size_t index, FrameCoder& coder, Bytes& memory) {
    kvt_ctx::LastError error;
    kvt_item item = items[index];
    item.written = 0;
    item.status = Caught(&error, [&] {
      Require(item.status == 0, "a buffer of the item overlaps one that the batch writes");
      one(item, coder, memory);
    });
    items.Put(index, item);
    if (item.status != 0) first.Note(index, error);
  };
  const auto run_with_own_coder = [&](uint64_t index) {
    const Reuse<kvt_ctx::BatchWorker>::Lease worker(ctx->batch_workers);
    run(static_cast<size_t>(index), PrepareCoder(ctx, *worker), (*worker).raw);
  };
  ThreadPool* pool = PoolOf(ctx);
  const auto threads = pool == nullptr ? size_t{1} : static_cast<size_t>(pool->threads());
  if (count >= threads && pool != nullptr) {
    pool->ParallelFor(count, run_with_own_coder);
  } else {
    ctx->coder.UsePool(pool);
    const Reuse<kvt_ctx::BatchWorker>::Lease worker(ctx->batch_workers);
    for (size_t index = 0; index < count; ++index) run(index, ctx->coder, (*worker).raw);
  }
  first.ThrowIfAny();
}

// Calls `decode` with the context that the caller expects of a frame; null if it named none.
template <typename F>
auto WithContext(const uint8_t context[16], F&& decode) {
  if (context == nullptr) return decode(static_cast<const Hash128Bytes*>(nullptr));
  const Hash128Bytes wanted = HashOf(context);
  return decode(&wanted);
}

// Decodes a part of a frame by `decode`, which returns the bytes of the part.
template <typename F>
kvt_status DecodePart(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16], void* dst,
                      size_t cap, size_t* written, F&& decode) {
  return Call(ctx, [&] {
    if (written != nullptr) *written = 0;
    const ByteSpan frame = Span(src, n);
    const std::span<std::byte> raw = Span(dst, cap);
    RequireApart(frame, raw, "src and dst overlap");
    ctx->coder.UsePool(PoolOf(ctx));
    const uint64_t size = WithContext(context, [&](const Hash128Bytes* wanted) {
      return Counted(ctx, [&] { return decode(frame, wanted, raw); });
    });
    if (written != nullptr) *written = static_cast<size_t>(size);
  });
}

}  // namespace
}  // namespace kv::api

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

size_t kvt_encode_bound(size_t raw_bytes) { return FrameBound(raw_bytes); }

kvt_status kvt_encode(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n, void* dst,
                      size_t cap, size_t* written) {
  return Call(ctx, [&] {
    if (written != nullptr) *written = 0;
    const ByteSpan raw = Span(src, n);
    const std::span<std::byte> frame = Span(dst, cap);
    RequireApart(raw, frame, "src and dst overlap");
    uint64_t needed = 0;
    ctx->coder.UsePool(PoolOf(ctx));
    const struct Report {
      uint64_t& needed;
      size_t* written;
      ~Report() {
        if (written != nullptr) *written = needed;
      }
    } report{needed, written};
    EncodeOne(ctx, ctx->coder, desc, raw, frame, &needed);
  });
}

kvt_status kvt_frame_info(const void* src, size_t n, kvt_info* out) {
  return Caught(nullptr, [&] {
    RequireSize(out, "out->struct_size");
    const FrameHeader header = ReadFrameHeader(Span(src, n));
    const FrameDescription& description = header.description;
    kvt_info info = {};
    info.version = header.version;
    info.codec = static_cast<uint8_t>(header.codec);
    info.level = static_cast<uint8_t>(header.level);
    info.dtype = static_cast<uint8_t>(description.dtype);
    info.order = static_cast<uint8_t>(description.order);
    info.role = static_cast<uint8_t>(description.role);
    info.heads = description.heads;
    info.head_dim = description.head_dim;
    info.tag = description.tag;
    info.segment_tokens =
        static_cast<uint32_t>(std::min<uint64_t>(header.segment_tokens(), UINT32_MAX));
    info.tokens = description.tokens;
    info.raw_bytes = header.raw_bytes;
    info.frame_bytes = header.frame_bytes();
    std::memcpy(info.raw_hash, header.raw_hash.data(), sizeof info.raw_hash);
    std::memcpy(info.context, description.context.data(), sizeof info.context);
    info.segments = GridOfHeader(header).count;
    Fill(out, info);
  });
}

kvt_status kvt_frame_segments(const void* src, size_t n, kvt_segment* out, size_t cap,
                              size_t* count) {
  return Caught(nullptr, [&] {
    Require(count != nullptr, "count");
    *count = 0;
    const Elements<kvt_segment> room(out, cap, "out->struct_size");
    const ByteSpan frame = Span(src, n);
    RequireApart(frame, {reinterpret_cast<std::byte*>(out), room.bytes()}, "src and out overlap");
    const FrameHeader header = ReadFrameHeader(frame);
    const SegmentTable table = ReadSegments(header, frame);
    *count = table.segments.size();
    if (cap == 0 && out == nullptr) return;
    if (cap < table.segments.size()) {
      throw Error(Finding::kOutputTooSmall, "the frame has {} segments, there is room for {}",
                  table.segments.size(), cap);
    }
    for (size_t i = 0; i < table.segments.size(); ++i) {
      const StoredSegment& stored = table.segments[i];
      kvt_segment segment = {};
      segment.codec = static_cast<uint32_t>(stored.codec);
      segment.kind = stored.codec == CodecId::kRaw        ? KVT_SEGMENT_RAW
                     : stored.codec == CodecId::kProfiled ? KVT_SEGMENT_PROFILED
                                                          : KVT_SEGMENT_CODED;
      segment.offset = static_cast<uint64_t>(stored.payload.data() - frame.data());
      segment.bytes = stored.payload.size();
      segment.raw_offset = table.grid.Begin(i);
      segment.raw_bytes = table.grid.Size(i);
      room.Put(i, segment);
    }
  });
}

kvt_status kvt_decode(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16], void* dst,
                      size_t raw_bytes) {
  return Call(ctx, [&] {
    const ByteSpan frame = Span(src, n);
    const std::span<std::byte> raw = Span(dst, raw_bytes);
    RequireApart(frame, raw, "src and dst overlap");
    ctx->coder.UsePool(PoolOf(ctx));
    WithContext(context, [&](const Hash128Bytes* wanted) {
      return DecodeOne(ctx, ctx->coder, frame, wanted, raw);
    });
  });
}

kvt_status kvt_decode_tokens(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16],
                             uint64_t begin, uint64_t count, void* dst, size_t cap,
                             size_t* written) {
  return DecodePart(ctx, src, n, context, dst, cap, written,
                    [&](ByteSpan frame, const Hash128Bytes* wanted, std::span<std::byte> raw) {
                      return ctx->coder.DecodeTokens(frame, wanted, begin, count, raw);
                    });
}

kvt_status kvt_decode_heads(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16],
                            uint32_t begin, uint32_t count, void* dst, size_t cap,
                            size_t* written) {
  return DecodePart(ctx, src, n, context, dst, cap, written,
                    [&](ByteSpan frame, const Hash128Bytes* wanted, std::span<std::byte> raw) {
                      return ctx->coder.DecodeHeads(frame, wanted, begin, count, raw);
                    });
}

kvt_status kvt_verify(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16]) {
  return Call(ctx, [&] {
    ctx->coder.UsePool(PoolOf(ctx));
    WithContext(context, [&](const Hash128Bytes* wanted) {
      return Counted(ctx, [&] { return ctx->coder.Verify(Span(src, n), wanted); });
    });
  });
}

kvt_status kvt_encode_batch(kvt_ctx* ctx, kvt_item* items, size_t count) {
  return Call(ctx, [&] {
    ForEachItem(ctx, items, count, true, [&](kvt_item& item, FrameCoder& coder, Bytes& memory) {
      const std::span<std::byte> raw = RawOf(item, memory);
      Gather(item, raw);
      uint64_t needed = 0;
      const struct Report {
        uint64_t& needed;
        size_t& written;
        ~Report() { written = needed; }
      } report{needed, item.written};
      EncodeOne(ctx, coder, item.desc, raw, Span(item.frame, item.frame_bytes), &needed);
    });
  });
}

kvt_status kvt_decode_batch(kvt_ctx* ctx, kvt_item* items, size_t count) {
  return Call(ctx, [&] {
    ForEachItem(ctx, items, count, false, [&](kvt_item& item, FrameCoder& coder, Bytes& memory) {
      const std::span<std::byte> raw = RawOf(item, memory);
      const Hash128Bytes wanted = DescriptionOf(item.desc).context;
      DecodeOne(ctx, coder, Span(static_cast<const void*>(item.frame), item.frame_bytes),
                item.desc == nullptr ? nullptr : &wanted, raw);
      Scatter(raw, item);
      item.written = raw.size();
    });
  });
}

kvt_status kvt_estimate(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                        kvt_rate* rates, size_t count) {
  return Call(ctx, [&] {
    const Elements<kvt_rate> wanted(rates, count, "rates->struct_size");
    wanted.RequireEqualSizes("rates->struct_size");
    const FrameDescription description = DescriptionOf(desc);
    const ByteSpan raw = Span(src, n);
    RequireApart(raw, {reinterpret_cast<std::byte*>(rates), wanted.bytes()},
                 "src and rates overlap");
    // Of the call alone: another level may take far more than the context's.
    CodecScratch scratch;
    for (size_t i = 0; i < count; ++i) {
      ctx->state.StopIfCancelled();
      kvt_rate rate = wanted[i];
      Require(rate.level >= KVT_FAST && rate.level <= KVT_MAX, "rate->level");
      constexpr double kMega = 1e6;
      const FrameRate found =
          EstimateFrame(description, raw, static_cast<Effort>(rate.level), scratch);
      rate.ratio = found.ratio;
      rate.encode_mb_s = found.encode_bytes_s / kMega;
      rate.decode_mb_s = found.decode_bytes_s / kMega;
      wanted.Put(i, rate);
    }
  });
}
