// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/chunk_levels.h"
#include "lib/core/codec/layers/layers.h"
#include "lib/core/codec/lms/lms.h"
#include "lib/core/codec/prev/prev.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/codec/ref/ref.h"
#include "lib/core/codec/rotated/rotated.h"
#include "lib/core/codec/rows/rows.h"
#include "lib/core/codec/split/split.h"
#include "lib/core/codec/widened/widened.h"
#include "lib/core/codec/window4/window4.h"
#include "lib/core/codec/zstd_planes/zstd_planes.h"

namespace kv {
namespace {

// Gear counts in 32 bits; far below that limit a chunk has lost its point anyway.
constexpr uint64_t kMostGearBytes = uint64_t{2} << 30;

bool AnyType(DType) { return true; }
bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
bool IsBf16(DType dtype) { return dtype == DType::kBF16; }
bool IsF32(DType dtype) { return dtype == DType::kF32; }

bool IsWhole(ByteSpan raw, uint64_t word_bytes) {
  return !raw.empty() && raw.size() % word_bytes == 0 && raw.size() <= kMostGearBytes;
}

bool EncodeRaw(const ChunkShape&, ByteSpan raw, uint64_t, CodecScratch&, EncodedChunk& out) {
  out.payload.assign(raw.begin(), raw.end());
  return true;
}

void DecodeRaw(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw, CodecScratch&) {
  if (payload.size() != raw.size()) {
    throw Error(Finding::kBadFrame,
                fmt::format("{} bytes stored raw, expected {}", payload.size(), raw.size()));
  }
  std::copy(payload.begin(), payload.end(), raw.begin());
}

template <GearKind kKind>
bool EncodeContainer(const ChunkShape&, ByteSpan raw, uint64_t, CodecScratch& scratch,
                     EncodedChunk& out) {
  if (!IsWhole(raw, PlanesOf(kKind))) return false;
  out.planes = EncodeGear(kKind, raw, {}, scratch, out.payload);
  return true;
}

template <GearKind kKind>
void DecodeContainer(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw,
                     CodecScratch& scratch) {
  DecodeGear(kKind, payload, raw, scratch);
}

bool EncodeFields(const ChunkShape& shape, ByteSpan raw, uint64_t, CodecScratch& scratch,
                  EncodedChunk& out) {
  if (!HasBlockPlanes(shape.dtype) || !IsWhole(raw, Info(shape.dtype).block_bytes)) return false;
  out.planes = EncodeBlockPlanes(shape.dtype, raw, BlockFrames::kMatches, scratch, out.payload);
  return true;
}

void DecodeFields(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                  CodecScratch& scratch) {
  DecodeBlockPlanes(shape.dtype, payload, raw, scratch);
}

bool EncodeZstd(const ChunkShape&, ByteSpan raw, uint64_t, CodecScratch& scratch,
                EncodedChunk& out) {
  const std::span<std::byte> frame = scratch.candidate.Get(Zstd::Bound(raw.size()));
  const size_t size = scratch.zstd.Compress(raw, frame);
  // A failure (there is none with enough room) counts as no gain.
  out.payload.assign(frame.begin(),
                     frame.begin() + static_cast<std::ptrdiff_t>(size == 0 ? raw.size() : size));
  return true;
}

void DecodeZstd(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch) {
  if (scratch.zstd.Decompress(payload, raw)) return;
  throw Error(Finding::kBadPayload,
              fmt::format("the zstd frame of {} bytes does not decode to {} bytes", payload.size(),
                          raw.size()));
}

bool EncodePrev(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat, CodecScratch& scratch,
                EncodedChunk& out) {
  if (!IsWhole(raw, 2)) return false;
  const ChunkGrid grid = GridOf(shape, raw.size());
  const HalfSurvey survey = SurveyHalves(raw, shape.dtype == DType::kBF16, false);
  const auto plan = PlanContext(raw, survey, grid.rows, grid.columns, to_beat, scratch.context);
  if (plan) EncodeContext(raw, *plan, scratch.context, out.payload);
  return plan.has_value();
}

void DecodePrev(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch) {
  DecodeContext(payload, shape.dtype == DType::kBF16, raw, scratch.context);
}

template <bool kWithLikenesses>
bool EncodePrediction(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat,
                      CodecScratch& scratch, EncodedChunk& out) {
  const ChunkGrid grid = GridOf(shape, raw.size());
  if (!IsWhole(raw, 2) || grid.rows < 2 || grid.columns < kRansLanes) return false;
  const bool bfloat = shape.dtype == DType::kBF16;
  std::optional<LikenessPlan> like;
  if (kWithLikenesses) {
    like = PlanLikenesses(raw, bfloat, grid.rows, grid.columns, HeadDim(shape), scratch.steps,
                          &scratch.context.arena);
    if (!like) return false;
  }
  return EncodeLms(raw, SurveyHalves(raw, bfloat, false), grid.rows, grid.columns, HeadDim(shape),
                   like ? &*like : nullptr, to_beat, scratch, out.payload);
}

template <bool kWithLikenesses>
void DecodePrediction(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                      CodecScratch& scratch) {
  DecodeLms(payload, shape.dtype == DType::kBF16, kWithLikenesses, raw, scratch);
}

bool EncodeWindow4(const ChunkShape&, ByteSpan raw, uint64_t, CodecScratch& scratch,
                   EncodedChunk& out) {
  if (!IsWhole(raw, 2)) return false;
  EncodeWindow(raw, PlanWindow(raw).base, scratch, out.payload);
  return true;
}

void DecodeWindow4(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw, CodecScratch&) {
  DecodeWindow(payload, raw);
}

bool EncodeWidened(const ChunkShape& shape, ByteSpan raw, uint64_t, CodecScratch& scratch,
                   EncodedChunk& out) {
  if (!IsWhole(raw, 4)) return false;
  out = EncodeWide(shape, raw, scratch, [&](const ChunkShape& inner, ByteSpan halves) {
    return EncodeChunk(inner, halves, Effort::kFast, scratch);
  });
  return true;
}

bool EncodeHalvesApart(const ChunkShape& shape, ByteSpan raw, uint64_t, CodecScratch& scratch,
                       EncodedChunk& out) {
  if (!CanSplit(shape, raw.size()) || !IsWhole(raw, 2)) return false;
  out = EncodeSplit(shape, raw, Effort::kFast, scratch);
  return true;
}

bool EncodeDistribution(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat,
                        CodecScratch& scratch, EncodedChunk& out) {
  const ChunkGrid grid = GridOf(shape, raw.size());
  if (!IsWhole(raw, 2) || !FitsCdf(grid.rows, grid.columns)) return false;
  return EncodeCdf(raw, shape.dtype == DType::kBF16, grid.rows, grid.columns, HeadDim(shape),
                   scratch.steps, to_beat, out.payload, &scratch.context.arena);
}

void DecodeDistribution(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                        CodecScratch& scratch) {
  DecodeCdf(payload, shape.dtype == DType::kBF16, raw, scratch.steps, &scratch.context.arena);
}

// Ids are stored in archives: a row is never taken away, an id never used again.
constexpr CodecRow kCodecs[] = {
    {.id = CodecId::kRaw,
     .name = "raw",
     .takes = AnyType,
     .since = Effort::kCompat,
     .encode = EncodeRaw,
     .decode = DecodeRaw},
    {.id = CodecId::kGear16,
     .name = "gear-f16",
     .takes = AnyType,
     .since = Effort::kCompat,
     .encode = EncodeContainer<GearKind::kTwoPlanes>,
     .decode = DecodeContainer<GearKind::kTwoPlanes>},
    {.id = CodecId::kGear32,
     .name = "gear-f32",
     .takes = AnyType,
     .since = Effort::kCompat,
     .encode = EncodeContainer<GearKind::kFourPlanes>,
     .decode = DecodeContainer<GearKind::kFourPlanes>},
    {.id = CodecId::kZstdPlanes,
     .name = "zstd-planes",
     .takes = AnyType,
     .since = Effort::kCompat,
     .encode = EncodeFields,
     .decode = DecodeFields},
    {.id = CodecId::kZstd,
     .name = "zstd",
     .takes = AnyType,
     .since = Effort::kCompat,
     .encode = EncodeZstd,
     .decode = DecodeZstd},
    {.id = CodecId::kPrev,
     .name = "prev",
     .takes = IsHalf,
     .since = Effort::kDefault,
     .encode = EncodePrev,
     .decode = DecodePrev},
    {.id = CodecId::kRotated16,
     .name = "rotated",
     .takes = AnyType,
     .since = Effort::kFast,
     .encode = EncodeRotated,
     .decode = DecodeRotated},
    {.id = CodecId::kRows,
     .name = "rows",
     .takes = AnyType,
     .since = Effort::kDefault,
     .encode = EncodeRepeatedRows,
     .decode = DecodeRepeatedRows},
    {.id = CodecId::kLms,
     .name = "lms",
     .takes = IsHalf,
     .since = Effort::kHigh,
     .encode = EncodePrediction<false>,
     .decode = DecodePrediction<false>},
    {.id = CodecId::kWindow4,
     .name = "window4",
     .takes = IsBf16,
     .since = Effort::kFast,
     .encode = EncodeWindow4,
     .decode = DecodeWindow4},
    {.id = CodecId::kWidened,
     .name = "widened",
     .takes = IsF32,
     .since = Effort::kFast,
     .encode = EncodeWidened,
     .decode = DecodeWide},
    {.id = CodecId::kCdf,
     .name = "cdf",
     .takes = IsHalf,
     .since = Effort::kMax,
     .tried = true,
     .encode = EncodeDistribution,
     .decode = DecodeDistribution},
    {.id = CodecId::kLike,
     .name = "like",
     .takes = IsHalf,
     .since = Effort::kHigh,
     .encode = EncodePrediction<true>,
     .decode = DecodePrediction<true>},
    // For frames that say that K and V lie side by side: no level tries it on other chunks.
    {.id = kSplitCodec,
     .name = "split",
     .takes = AnyType,
     .since = Effort::kFast,
     .encode = EncodeHalvesApart,
     .decode = DecodeSplit},
    // Only archives with references hold it: no level tries it on a chunk alone.
    {.id = CodecId::kRef,
     .name = "ref",
     .takes = AnyType,
     .since = Effort::kFast,
     .encode = EncodeWithoutReference,
     .decode = DecodeByReference<CodecId::kRef>},
    {.id = CodecId::kRefCdf,
     .name = "ref-cdf",
     .takes = IsHalf,
     .since = Effort::kMax,
     .encode = EncodeWithoutReference,
     .decode = DecodeByReference<CodecId::kRefCdf>},
    // Only archives hold it: no level tries it on a chunk alone.
    {.id = CodecId::kLayers,
     .name = "layers",
     .takes = IsHalf,
     .since = Effort::kMax,
     .encode = EncodeWithoutNeighbours,
     .decode = DecodeByLayers},
    // Only where there is a profile: no level tries it on a chunk alone.
    {.id = CodecId::kProfiled,
     .name = "profiled",
     .takes = IsHalf,
     .since = Effort::kDefault,
     .encode = EncodeByAnyEntry,
     .decode = DecodeProfiled},
    // As ref.
    {.id = CodecId::kRefLayers,
     .name = "ref-layers",
     .takes = IsHalf,
     .since = Effort::kMax,
     .encode = EncodeWithoutReference,
     .decode = DecodeByReference<CodecId::kRefLayers>},
    {.id = CodecId::kRefSparse,
     .name = "ref-sparse",
     .takes = IsHalf,
     .since = Effort::kFast,
     .encode = EncodeWithoutReference,
     .decode = DecodeByReference<CodecId::kRefSparse>},
};

}  // namespace

std::span<const CodecRow> Codecs() { return kCodecs; }

const CodecRow* FindCodec(CodecId id) {
  const auto* row = std::find_if(std::begin(kCodecs), std::end(kCodecs),
                                 [&](const CodecRow& codec) { return codec.id == id; });
  return row == std::end(kCodecs) ? nullptr : row;
}

}  // namespace kv
