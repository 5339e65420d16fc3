// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/chunk.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/chunk_levels.h"
#include "lib/core/codec/lms/lms.h"
#include "lib/core/codec/prev/prev.h"
#include "lib/core/codec/rows/rows.h"
#include "lib/core/codec/widened/widened.h"
#include "lib/core/codec/window4/window4.h"
#include "lib/core/codec/zstd_planes/zstd_planes.h"
#include "lib/core/kernels/rotate.h"

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
    case CodecId::kPrev:
      return "prev";
    case CodecId::kRotated16:
      return "rotated";
    case CodecId::kRows:
      return "rows";
    case CodecId::kLms:
      return "lms";
    case CodecId::kWindow4:
      return "window4";
    case CodecId::kWidened:
      return "widened";
    case CodecId::kCdf:
      return "cdf";
    case CodecId::kLike:
      return "like";
  }
  return {};
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

EncodedChunk EncodeCompat(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch) {
  EncodedChunk chunk;
  chunk.codec = CodecFor(shape.dtype, raw);
  switch (chunk.codec) {
    case CodecId::kGear16:
      chunk.planes = EncodeGear(GearKind::kTwoPlanes, raw, {}, scratch, chunk.payload);
      break;
    case CodecId::kGear32:
      chunk.planes = EncodeGear(GearKind::kFourPlanes, raw, {}, scratch, chunk.payload);
      break;
    case CodecId::kZstdPlanes:
      chunk.planes = EncodeBlockPlanes(shape.dtype, raw, false, scratch, chunk.payload);
      break;
    case CodecId::kZstd:
      EncodeZstd(raw, scratch, chunk.payload);
      break;
    default:
      chunk.payload.assign(raw.begin(), raw.end());
      break;
  }
  return chunk;
}

EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch) {
  EncodedChunk chunk = effort == Effort::kCompat ? EncodeCompat(shape, raw, scratch)
                                                 : EncodeByCost(shape, raw, effort, scratch);
  if (chunk.payload.size() >= raw.size()) {
    chunk = {CodecId::kRaw, Bytes(raw.begin(), raw.end()), {}};
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

namespace {

void DecodeRotated(ByteSpan payload, std::span<std::byte> raw, CodecScratch& scratch) {
  DecodeGear(GearKind::kTwoPlanes, payload, raw, scratch);
  RotateRight16(raw.data(), raw.size() / 2, raw.data());
}

void DecodeRows(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch) {
  const ChunkGrid grid = GridOf(shape, raw.size());
  const uint64_t row_bytes = raw.size() / grid.rows;
  if (raw.empty() || row_bytes * grid.rows != raw.size()) {
    throw Error(Finding::kBadFrame, fmt::format("{} bytes are not {} rows", raw.size(), grid.rows));
  }
  ByteReader reader(payload);
  const auto inner = static_cast<CodecId>(reader.U8("codec of the rows"));
  if (inner == CodecId::kRows) throw Error(Finding::kBadFrame, "rows inside rows").At(0);
  const RowPlan plan = ReadReferences(reader, grid.rows, scratch);
  const ChunkShape rows{shape.dtype, plan.unique, 1, grid.columns, Order::kTokenHeadDim};
  const uint64_t new_bytes = plan.unique * row_bytes;
  const std::span<std::byte> new_rows = scratch.rows.Get(new_bytes).first(new_bytes);
  DecodeChunk(inner, rows, reader.Take(reader.remaining(), "rows"), new_rows, scratch);
  RepeatRows(plan, new_rows, row_bytes, raw);
}

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

}  // namespace

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
    case CodecId::kPrev:
      if (!IsHalf(shape.dtype)) break;
      return DecodeContext(payload, shape.dtype == DType::kBF16, raw, scratch.context);
    case CodecId::kLms:
    case CodecId::kLike:
      if (!IsHalf(shape.dtype)) break;
      return DecodeLms(payload, shape.dtype == DType::kBF16, codec == CodecId::kLike, raw, scratch);
    case CodecId::kCdf:
      if (!IsHalf(shape.dtype)) break;
      return DecodeCdf(payload, shape.dtype == DType::kBF16, raw);
    case CodecId::kWindow4:
      if (shape.dtype != DType::kBF16) break;
      return DecodeWindow(payload, raw);
    case CodecId::kWidened:
      if (shape.dtype != DType::kF32) break;
      return DecodeWide(shape, payload, raw, scratch);
    case CodecId::kRotated16:
      return DecodeRotated(payload, raw, scratch);
    case CodecId::kRows:
      return DecodeRows(shape, payload, raw, scratch);
  }
  throw Error(Finding::kBadFrame, fmt::format("there is no codec {} for {}",
                                              static_cast<unsigned>(codec), Name(shape.dtype)));
}

}  // namespace kv
