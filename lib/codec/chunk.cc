// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/chunk.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/codec/block_planes.h"

namespace kv {

std::string_view Name(CodecId codec) {
  switch (codec) {
    case CodecId::kRaw:
      return "raw";
    case CodecId::kGear16:
      return "gear-f16";
    case CodecId::kGear32:
      return "gear-f32";
    case CodecId::kZstdPlanes:
      return "zstd-planes";
    case CodecId::kZstd:
      return "zstd";
  }
  return {};
}

namespace {

// Gear counts in 32 bits; far below that limit a chunk has lost its point anyway.
constexpr uint64_t kMaxGearBytes = uint64_t{2} << 30;

CodecId CodecFor(DType dtype, ByteSpan raw) {
  if (raw.empty()) return CodecId::kRaw;
  const bool whole = raw.size() % Info(dtype).block_bytes == 0 && raw.size() <= kMaxGearBytes;
  if (!whole) return CodecId::kZstd;
  if (dtype == DType::kF16 || dtype == DType::kBF16) return CodecId::kGear16;
  if (dtype == DType::kF32) return CodecId::kGear32;
  return HasBlockPlanes(dtype) ? CodecId::kZstdPlanes : CodecId::kZstd;
}

void EncodeZstd(ByteSpan raw, CodecScratch& scratch, Bytes& out) {
  const std::span<std::byte> frame = scratch.candidate.Get(Zstd::Bound(raw.size()));
  const size_t size = scratch.zstd.Compress(raw, frame);
  // A failure (there is none with enough room) counts as no gain.
  out.assign(frame.begin(),
             frame.begin() + static_cast<std::ptrdiff_t>(size == 0 ? raw.size() : size));
}

void DecodeRaw(ByteSpan payload, std::span<std::byte> raw) {
  if (payload.size() != raw.size()) {
    throw Error(Finding::kBadFrame,
                fmt::format("{} bytes stored raw, expected {}", payload.size(), raw.size()));
  }
  std::copy(payload.begin(), payload.end(), raw.begin());
}

void DecodeZstd(ByteSpan payload, std::span<std::byte> raw, CodecScratch& scratch) {
  if (scratch.zstd.Decompress(payload, raw)) return;
  throw Error(Finding::kBadPayload,
              fmt::format("the zstd frame of {} bytes does not decode to {} bytes", payload.size(),
                          raw.size()));
}

}  // namespace

EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch) {
  KV_ASSERT(effort == Effort::kCompat);
  EncodedChunk chunk;
  chunk.codec = CodecFor(shape.dtype, raw);
  switch (chunk.codec) {
    case CodecId::kRaw:
      break;
    case CodecId::kGear16:
      chunk.planes = EncodeGear(GearKind::kTwoPlanes, raw, {}, scratch, chunk.payload);
      break;
    case CodecId::kGear32:
      chunk.planes = EncodeGear(GearKind::kFourPlanes, raw, {}, scratch, chunk.payload);
      break;
    case CodecId::kZstdPlanes:
      chunk.planes = EncodeBlockPlanes(shape.dtype, raw, scratch, chunk.payload);
      break;
    case CodecId::kZstd:
      EncodeZstd(raw, scratch, chunk.payload);
      break;
  }
  if (chunk.payload.size() >= raw.size()) {
    chunk = {CodecId::kRaw, Bytes(raw.begin(), raw.end()), {}};
  }
  return chunk;
}

void DecodeChunk(CodecId codec, const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch) {
  switch (codec) {
    case CodecId::kRaw:
      return DecodeRaw(payload, raw);
    case CodecId::kGear16:
      return DecodeGear(GearKind::kTwoPlanes, payload, raw, scratch);
    case CodecId::kGear32:
      return DecodeGear(GearKind::kFourPlanes, payload, raw, scratch);
    case CodecId::kZstdPlanes:
      return DecodeBlockPlanes(shape.dtype, payload, raw, scratch);
    case CodecId::kZstd:
      return DecodeZstd(payload, raw, scratch);
  }
  throw Error(Finding::kBadFrame,
              fmt::format("codec {} does not exist", static_cast<unsigned>(codec)));
}

}  // namespace kv
