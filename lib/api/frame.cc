// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/frame/frame.h"

#include <algorithm>

#include "lib/api/batch.h"

namespace kv::api {
namespace {

// The context that the caller expects of a frame; get() is nullptr if it gave none.
class GivenContext {
 public:
  explicit GivenContext(const uint8_t* context) : is_given_(context != nullptr) {
    if (is_given_) std::memcpy(wanted_.data(), context, wanted_.size());
  }
  const Hash128Bytes* get() const { return is_given_ ? &wanted_ : nullptr; }

 private:
  bool is_given_;
  Hash128Bytes wanted_;
};

// Decodes a part of a frame with `decode`, which returns the bytes of the part.
template <typename F>
kvt_status DecodePart(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16], void* dst,
                      size_t cap, size_t* written, F&& decode) {
  return Call(ctx, [&] {
    if (written != nullptr) *written = 0;
    const ByteSpan frame = Span(src, n);
    const std::span<std::byte> raw = Span(dst, cap);
    RequireApart(frame, raw, "src and dst overlap");
    ctx->coder.UsePool(FindPool(ctx));
    uint64_t size = 0;
    Counted(ctx, [&] { size = decode(frame, GivenContext(context).get(), raw); });
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
    ctx->coder.UsePool(FindPool(ctx));
    EncodeFrame(ctx, ctx->coder, desc, raw, frame, written);
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
    ctx->coder.UsePool(FindPool(ctx));
    DecodeFrame(ctx, ctx->coder, frame, GivenContext(context).get(), raw);
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
    ctx->coder.UsePool(FindPool(ctx));
    Counted(ctx, [&] { ctx->coder.Verify(Span(src, n), GivenContext(context).get()); });
  });
}

kvt_status kvt_encode_batch(kvt_ctx* ctx, kvt_item* items, size_t count) {
  return CallBatch(ctx, {0, KVT_ENCODE_ITEMS, items, count, nullptr, nullptr});
}

kvt_status kvt_decode_batch(kvt_ctx* ctx, kvt_item* items, size_t count) {
  return CallBatch(ctx, {0, KVT_DECODE_ITEMS, items, count, nullptr, nullptr});
}

kvt_status kvt_estimate(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                        kvt_rate* rates, size_t count) {
  return Call(ctx, [&] {
    const Elements<kvt_rate> wanted(rates, count, "rates->struct_size");
    wanted.RequireEqualSizes("rates->struct_size");
    const FrameDescription description = MakeDescription(desc);
    const ByteSpan raw = Span(src, n);
    RequireApart(raw, {reinterpret_cast<std::byte*>(rates), wanted.bytes()},
                 "src and rates overlap");
    for (size_t i = 0; i < count; ++i) {
      ctx->state.StopIfCancelled();
      kvt_rate rate = wanted[i];
      Require(rate.level >= KVT_FAST && rate.level <= KVT_MAX, "rate->level");
      constexpr double kMega = 1e6;
      // Uses a coder of its own, because another level may take far more memory than the context's.
      FrameCoder coder(static_cast<Effort>(rate.level));
      coder.UseState(&ctx->state);
      coder.UseProfile(ctx->profile);
      coder.UseBlocks(ctx->coder.uses_blocks());
      const FrameRate found = coder.Estimate(description, raw);
      rate.ratio = found.ratio;
      rate.encode_mb_s = found.encode_bytes_s / kMega;
      rate.decode_mb_s = found.decode_bytes_s / kMega;
      wanted.Put(i, rate);
    }
  });
}
