// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/chunk.h"

#include <fmt/format.h>

#include <iterator>

#include "lib/core/base/error.h"
#include "lib/core/codec/chunk_levels.h"
#include "lib/core/codec/table.h"
#include "lib/core/codec/zstd_planes/zstd_planes.h"

namespace kv {

std::string_view Name(CodecId codec) {
  const CodecRow* row = FindCodec(codec);
  return row == nullptr ? std::string_view() : row->name;
}

namespace {
constexpr std::string_view kEffortNames[] = {"compat", "fast", "default", "high", "max"};
}  // namespace

std::string_view Name(Effort effort) { return kEffortNames[static_cast<size_t>(effort)]; }

std::optional<Effort> ParseEffort(std::string_view name) {
  for (size_t i = 0; i < std::size(kEffortNames); ++i) {
    if (name == kEffortNames[i]) return static_cast<Effort>(i);
  }
  return std::nullopt;
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

}  // namespace

EncodedChunk EncodeCompat(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch) {
  EncodedChunk chunk{CodecFor(shape.dtype, raw), scratch.NewPayload(), {}};
  const bool coded = FindCodec(chunk.codec)->encode(shape, raw, kAnySize, scratch, chunk);
  KV_ASSERT(coded);
  return chunk;
}

EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch) {
  const Arena::Scope temporaries(&scratch.context.arena);
  scratch.Expect(raw.size());
  EncodedChunk chunk = effort == Effort::kCompat ? EncodeCompat(shape, raw, scratch)
                                                 : EncodeByCost(shape, raw, effort, scratch);
  if (chunk.payload.size() >= raw.size()) {
    chunk.codec = CodecId::kRaw;
    chunk.payload.assign(raw.begin(), raw.end());
    chunk.planes.clear();
  }
  return chunk;
}

ChunkGrid GridOf(const ChunkShape& shape, uint64_t raw_bytes) {
  const DTypeInfo& info = Info(shape.dtype);
  uint64_t rows = 0, units = shape.units_per_head;
  if (shape.order == Order::kTokenHeadDim) {
    rows = shape.tokens;
    units *= shape.heads;
  } else if (shape.order == Order::kHeadTokenDim) {
    rows = shape.heads * shape.tokens;
  }
  // Shapes come from files: they count only where they explain the bytes.
  if (rows > 0 && units > 0 && raw_bytes % rows == 0 && raw_bytes / rows % units == 0 &&
      raw_bytes / rows / units == info.block_bytes) {
    return {rows, units};
  }
  return {1, raw_bytes / info.block_bytes};
}

uint64_t HeadDim(const ChunkShape& shape) { return shape.heads > 1 ? shape.units_per_head : 0; }

void DecodeChunk(CodecId codec, const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch) {
  const Arena::Scope temporaries(&scratch.context.arena);
  const CodecRow* row = FindCodec(codec);
  if (row != nullptr && row->takes(shape.dtype)) return row->decode(shape, payload, raw, scratch);
  throw Error(Finding::kBadFrame, fmt::format("there is no codec {} for {}",
                                              static_cast<unsigned>(codec), Name(shape.dtype)));
}

}  // namespace kv
