// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/frame/frame.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <ranges>

#include "lib/api/context.h"

namespace kv::api {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t NanosecondsSince(Clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

Hash128Bytes HashOf(const uint8_t bytes[16]) {
  Hash128Bytes hash;
  std::memcpy(hash.data(), bytes, hash.size());
  return hash;
}

}  // namespace

FrameDescription DescriptionOf(const kvt_desc* desc) {
  FrameDescription description;
  if (desc == nullptr) return description;
  Require(desc->struct_size == sizeof *desc, "desc->struct_size");
  Require(desc->reserved == 0 && desc->reserved2 == 0, "desc->reserved");
  description.dtype = static_cast<DType>(desc->dtype);
  bool known = false;
  for (const DTypeInfo& info : AllDTypes()) known |= info.dtype == description.dtype;
  Require(known, "desc->dtype");
  Require(desc->order == KVT_TOKEN_HEAD_DIM || desc->order == KVT_HEAD_TOKEN_DIM ||
              desc->order == KVT_ORDER_UNKNOWN,
          "desc->order");
  Require(desc->role <= KVT_KV, "desc->role");
  description.order = static_cast<Order>(desc->order);
  description.role = static_cast<FrameRole>(desc->role);
  description.heads = desc->heads;
  description.head_dim = desc->head_dim;
  description.tokens = desc->tokens;
  description.tag = desc->tag;
  description.context = HashOf(desc->context);
  return description;
}

namespace {

void RequireWithinLimit(const kvt_ctx* ctx, uint64_t raw_bytes) {
  if (ctx->max_raw_bytes == 0 || raw_bytes <= ctx->max_raw_bytes) return;
  throw Error(Finding::kLimit, "{} raw bytes, the context's limit is {}", raw_bytes,
              ctx->max_raw_bytes);
}

uint64_t EncodeOne(kvt_ctx* ctx, FrameCoder& coder, const kvt_desc* desc, ByteSpan raw,
                   std::span<std::byte> out, uint64_t* needed) {
  RequireWithinLimit(ctx, raw.size());
  const Clock::time_point start = Clock::now();
  const uint64_t size = coder.Encode(DescriptionOf(desc), raw, out, needed);
  ctx->sums.encode_ns += NanosecondsSince(start);
  ctx->sums.raw_bytes += raw.size();
  ctx->sums.stored_bytes += size;
  ++ctx->sums.frames;
  if (size == FrameBound(raw.size())) ++ctx->sums.stored_raw;
  return size;
}

// Runs a decoding call and counts how it ended.
template <typename F>
auto Counted(kvt_ctx* ctx, F&& decode) {
  const Clock::time_point start = Clock::now();
  try {
    const auto result = decode();
    ctx->sums.decode_ns += NanosecondsSince(start);
    ++ctx->sums.decoded;
    return result;
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::kInvalidData || failure.code() == ErrorCode::kUnsupported) {
      ++ctx->sums.refused;
    }
    throw;
  }
}

FrameHeader DecodeOne(kvt_ctx* ctx, FrameCoder& coder, ByteSpan frame, const Hash128Bytes* context,
                      std::span<std::byte> raw) {
  RequireWithinLimit(ctx, raw.size());
  return Counted(ctx, [&] { return coder.Decode(frame, context, raw); });
}

// Sets the status of each item: KV0010 if a buffer of it overlaps one that the batch writes, else
// 0. Ranges are compared with their neighbours by address, so that n buffers cost n log n.
void RefuseOverlaps(kvt_ctx* ctx, std::span<kvt_item> items, bool writes_frames) {
  std::vector<kvt_ctx::BatchRange>& ranges = ctx->batch_ranges;
  ranges.clear();
  const auto add = [&](const void* data, size_t bytes, size_t item, bool is_written) {
    if (data == nullptr || bytes == 0) return;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t end = begin + std::min<size_t>(bytes, UINTPTR_MAX - begin);
    ranges.push_back({begin, end, item, is_written});
  };
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].status = 0;
    const size_t pieces = items[i].pieces == nullptr ? 0 : items[i].piece_count;
    for (size_t p = 0; p < pieces; ++p)
      add(items[i].pieces[p].data, items[i].pieces[p].bytes, i, !writes_frames);
    add(items[i].frame, items[i].frame_bytes, i, writes_frames);
  }
  std::ranges::sort(ranges, {}, &kvt_ctx::BatchRange::begin);
  const auto refuse = [&](size_t item) { items[item].status = StatusOf(Finding::kBadArgument); };
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

// The raw object of an item: its only piece, or `memory` of the size of all pieces.
std::span<std::byte> RawOf(const kvt_item& item, Bytes& memory) {
  Require(item.pieces != nullptr || item.piece_count == 0, "item->pieces");
  if (item.piece_count == 1) return Span(item.pieces[0].data, item.pieces[0].bytes);
  size_t bytes = 0;
  for (size_t i = 0; i < item.piece_count; ++i) {
    Require(!__builtin_add_overflow(bytes, item.pieces[i].bytes, &bytes), "item->pieces");
  }
  memory.resize(bytes);
  return memory;
}

void Gather(const kvt_item& item, std::span<std::byte> raw) {
  if (item.piece_count == 1) return;
  for (size_t i = 0; i < item.piece_count; ++i) {
    const auto piece = Span(item.pieces[i].data, item.pieces[i].bytes);
    std::ranges::copy(piece, raw.begin());
    raw = raw.subspan(piece.size());
  }
}

void Scatter(std::span<const std::byte> raw, const kvt_item& item) {
  if (item.piece_count == 1) return;
  for (size_t i = 0; i < item.piece_count; ++i) {
    const auto piece = Span(item.pieces[i].data, item.pieces[i].bytes);
    std::ranges::copy(raw.first(piece.size()), piece.begin());
    raw = raw.subspan(piece.size());
  }
}

// Every item through `one`, each on one thread, or a single item on all of them. The first failure
// in the items' order is the call's.
template <typename F>
void ForEachItem(kvt_ctx* ctx, kvt_item* items, size_t count, size_t item_size, bool writes_frames,
                 F&& one) {
  Require(items != nullptr || count == 0, "items");
  Require(item_size == sizeof *items, "item_size");
  RefuseOverlaps(ctx, {items, count}, writes_frames);
  std::mutex mutex;
  size_t first_failed = count;
  kvt_ctx::LastError first;
  const auto run = [&](size_t index, FrameCoder& coder, Bytes& memory) {
    kvt_ctx::LastError error;
    items[index].written = 0;
    items[index].status = Caught(&error, [&] {
      Require(items[index].status == 0, "a buffer of the item overlaps one that the batch writes");
      one(items[index], coder, memory);
    });
    if (items[index].status == 0) return;
    const std::lock_guard lock(mutex);
    if (index >= first_failed) return;
    first_failed = index;
    first = error;
  };
  const auto run_with_own_coder = [&](uint64_t index) {
    const Reuse<kvt_ctx::BatchWorker>::Lease worker(ctx->batch_workers);
    kvt_ctx::BatchWorker& own = *worker;
    if (!own.coder) own.coder = std::make_unique<FrameCoder>(ctx->level, &ctx->state);
    own.coder->UseProfile(ctx->profile);
    own.coder->UseBlocks(ctx->coder.uses_blocks());
    run(static_cast<size_t>(index), *own.coder, own.raw);
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
  if (first_failed == count) return;
  throw BatchFailure{first};
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
    Require(out != nullptr && out->struct_size == sizeof *out, "out->struct_size");
    const FrameHeader header = ReadFrameHeader(Span(src, n));
    const FrameDescription& description = header.description;
    *out = {};
    out->struct_size = sizeof *out;
    out->version = header.version;
    out->codec = static_cast<uint8_t>(header.codec);
    out->level = static_cast<uint8_t>(header.level);
    out->dtype = static_cast<uint8_t>(description.dtype);
    out->order = static_cast<uint8_t>(description.order);
    out->role = static_cast<uint8_t>(description.role);
    out->heads = description.heads;
    out->head_dim = description.head_dim;
    out->tag = description.tag;
    out->segment_tokens =
        static_cast<uint32_t>(std::min<uint64_t>(header.segment_tokens(), UINT32_MAX));
    out->tokens = description.tokens;
    out->raw_bytes = header.raw_bytes;
    out->frame_bytes = header.frame_bytes();
    std::memcpy(out->raw_hash, header.raw_hash.data(), sizeof out->raw_hash);
    std::memcpy(out->context, description.context.data(), sizeof out->context);
  });
}

kvt_status kvt_decode(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16], void* dst,
                      size_t raw_bytes) {
  return Call(ctx, [&] {
    const ByteSpan frame = Span(src, n);
    const std::span<std::byte> raw = Span(dst, raw_bytes);
    RequireApart(frame, raw, "src and dst overlap");
    ctx->coder.UsePool(PoolOf(ctx));
    const Hash128Bytes wanted = context == nullptr ? Hash128Bytes{} : HashOf(context);
    DecodeOne(ctx, ctx->coder, frame, context == nullptr ? nullptr : &wanted, raw);
  });
}

kvt_status kvt_decode_tokens(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16],
                             uint64_t begin, uint64_t count, void* dst, size_t cap,
                             size_t* written) {
  return Call(ctx, [&] {
    if (written != nullptr) *written = 0;
    const ByteSpan frame = Span(src, n);
    const std::span<std::byte> raw = Span(dst, cap);
    RequireApart(frame, raw, "src and dst overlap");
    ctx->coder.UsePool(PoolOf(ctx));
    const Hash128Bytes wanted = context == nullptr ? Hash128Bytes{} : HashOf(context);
    const uint64_t size = Counted(ctx, [&] {
      return ctx->coder.DecodeTokens(frame, context == nullptr ? nullptr : &wanted, begin, count,
                                     raw);
    });
    if (written != nullptr) *written = size;
  });
}

kvt_status kvt_verify(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16]) {
  return Call(ctx, [&] {
    ctx->coder.UsePool(PoolOf(ctx));
    const Hash128Bytes wanted = context == nullptr ? Hash128Bytes{} : HashOf(context);
    Counted(ctx, [&] {
      return ctx->coder.Verify(Span(src, n), context == nullptr ? nullptr : &wanted);
    });
  });
}

kvt_status kvt_encode_batch(kvt_ctx* ctx, kvt_item* items, size_t count, size_t item_size) {
  return Call(ctx, [&] {
    ForEachItem(
        ctx, items, count, item_size, true, [&](kvt_item& item, FrameCoder& coder, Bytes& memory) {
          const std::span<std::byte> raw = RawOf(item, memory);
          Gather(item, raw);
          uint64_t needed = 0;
          item.written =
              EncodeOne(ctx, coder, item.desc, raw, Span(item.frame, item.frame_bytes), &needed);
        });
  });
}

kvt_status kvt_decode_batch(kvt_ctx* ctx, kvt_item* items, size_t count, size_t item_size) {
  return Call(ctx, [&] {
    ForEachItem(
        ctx, items, count, item_size, false, [&](kvt_item& item, FrameCoder& coder, Bytes& memory) {
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
                        kvt_rate* rates, size_t count, size_t rate_size) {
  return Call(ctx, [&] {
    Require(rates != nullptr || count == 0, "rates");
    Require(rate_size == sizeof *rates, "rate_size");
    const FrameDescription description = DescriptionOf(desc);
    const ByteSpan raw = Span(src, n);
    // Of the call alone: another level may take far more than the context's.
    CodecScratch scratch;
    for (kvt_rate& rate : std::span(rates, count)) {
      Require(rate.struct_size == sizeof rate, "rate->struct_size");
      Require(rate.level >= KVT_FAST && rate.level <= KVT_MAX, "rate->level");
      constexpr double kMega = 1e6;
      const FrameRate found =
          EstimateFrame(description, raw, static_cast<Effort>(rate.level), scratch);
      rate.ratio = found.ratio;
      rate.encode_mb_s = found.encode_bytes_s / kMega;
      rate.decode_mb_s = found.decode_bytes_s / kMega;
    }
  });
}
