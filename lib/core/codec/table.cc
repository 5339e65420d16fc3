// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The table of codecs (chunk.h), one row each, and the adapters that give all codecs the same
// signature.

#include <algorithm>

#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/codec/halves.h"
#include "lib/core/codec/planes/planes.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/codec/ref/ref.h"
#include "lib/core/codec/transformed/transformed.h"
#include "lib/core/codec/wrappers/wrappers.h"
#include "lib/core/kernels/planes.h"

namespace kv {
namespace {

bool AnyType(DType) { return true; }
bool IsBf16(DType dtype) { return dtype == DType::kBF16; }
bool IsF32(DType dtype) { return dtype == DType::kF32; }

bool IsWhole(ByteSpan raw, uint64_t word_bytes) {
  return !raw.empty() && raw.size() % word_bytes == 0 && raw.size() <= kMostGearBytes;
}

bool EncodeRaw(const ChunkShape&, ByteSpan raw, uint64_t, const RowSteps&, CodecScratch&,
               EncodedChunk& out) {
  out.payload.assign(raw.begin(), raw.end());
  return true;
}

void DecodeRaw(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw, CodecScratch&,
               const ChunkInputs&) {
  if (payload.size() != raw.size()) {
    throw Error(Finding::kBadFrame, "{} bytes stored raw, expected {}", payload.size(), raw.size());
  }
  std::copy(payload.begin(), payload.end(), raw.begin());
}

// Codes halves whose words are rotated left by one bit before they are split into planes, so that
// one plane of bf16 holds whole exponents. The planes hold literals, no matches.
bool EncodeRotated(const ChunkShape&, ByteSpan raw, uint64_t, const RowSteps&,
                   CodecScratch& scratch, EncodedChunk& out) {
  if (!IsWhole(raw, 2)) return false;
  const GearOptions literals{.predictors = {}, .rotl = true, .literals = true};
  out.planes = EncodeGear(GearKind::kTwoPlanes, raw, literals, scratch, out.payload);
  return true;
}

void DecodeRotated(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw,
                   CodecScratch& scratch, const ChunkInputs&) {
  DecodeGear(GearKind::kTwoPlanes, payload, raw, scratch);
  Rotr16(raw.data(), raw.size() / 2, raw.data());
}

template <GearKind kKind>
bool EncodeContainer(const ChunkShape&, ByteSpan raw, uint64_t, const RowSteps&,
                     CodecScratch& scratch, EncodedChunk& out) {
  if (!IsWhole(raw, CountPlanes(kKind))) return false;
  out.planes = EncodeGear(kKind, raw, {}, scratch, out.payload);
  return true;
}

template <GearKind kKind>
void DecodeContainer(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw,
                     CodecScratch& scratch, const ChunkInputs&) {
  DecodeGear(kKind, payload, raw, scratch);
}

bool EncodeFields(const ChunkShape& shape, ByteSpan raw, uint64_t, const RowSteps&,
                  CodecScratch& scratch, EncodedChunk& out) {
  if (!HasBlockPlanes(shape.dtype) || !IsWhole(raw, Info(shape.dtype).block_bytes)) return false;
  out.planes = EncodeBlockPlanes(shape.dtype, raw, BlockFrames::kMatches, scratch, out.payload);
  return true;
}

void DecodeFields(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                  CodecScratch& scratch, const ChunkInputs&) {
  DecodeBlockPlanes(shape.dtype, payload, raw, scratch);
}

bool EncodeZstd(const ChunkShape&, ByteSpan raw, uint64_t, const RowSteps&, CodecScratch& scratch,
                EncodedChunk& out) {
  const std::span<std::byte> frame = scratch.candidate.Get(Zstd::Bound(raw.size()));
  const size_t size = scratch.zstd.Compress(raw, frame);
  // zstd does not fail with enough room; a failure would count as no gain.
  out.payload.assign(frame.begin(),
                     frame.begin() + static_cast<std::ptrdiff_t>(size == 0 ? raw.size() : size));
  return true;
}

void DecodeZstd(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch, const ChunkInputs&) {
  if (scratch.zstd.Decompress(payload, raw)) return;
  throw Error(Finding::kBadPayload, "the zstd frame of {} bytes does not decode to {} bytes",
              payload.size(), raw.size());
}

bool EncodePrev(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat, const RowSteps&,
                CodecScratch& scratch, EncodedChunk& out) {
  if (!IsWhole(raw, 2)) return false;
  const ChunkGrid grid = FindGrid(shape, raw.size());
  const HalfSurvey survey = SurveyHalves(raw, MakeForm(shape), false);
  const auto plan = PlanContext(raw, survey, grid.rows, grid.columns, to_beat, scratch.context);
  if (plan) EncodeContext(raw, *plan, scratch.context, out.payload);
  return plan.has_value();
}

void DecodePrev(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch, const ChunkInputs&) {
  DecodeContext(payload, MakeForm(shape), raw, scratch.context);
}

template <bool kWithEarlierRows>
bool EncodePrediction(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat,
                      const RowSteps& steps, CodecScratch& scratch, EncodedChunk& out) {
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (!IsWhole(raw, 2) || grid.rows < 2 || grid.columns < kRansLanes) return false;
  const HalfForm form = MakeForm(shape);
  std::optional<EarlierRowsPlan> like;
  if (kWithEarlierRows) {
    like = PlanEarlierRows(raw, form.bfloat, grid.rows, grid.columns, HeadDim(shape), steps,
                           &scratch.context.arena);
    if (!like) return false;
  }
  return EncodeLms(raw, SurveyHalves(raw, form, false), grid.rows, grid.columns, HeadDim(shape),
                   like ? &*like : nullptr, to_beat, scratch, out.payload, steps);
}

template <bool kWithEarlierRows>
void DecodePrediction(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                      CodecScratch& scratch, const ChunkInputs& inputs) {
  DecodeLms(payload, MakeForm(shape), kWithEarlierRows, raw, scratch, inputs.steps);
}

bool EncodeWindow4(const ChunkShape&, ByteSpan raw, uint64_t, const RowSteps&,
                   CodecScratch& scratch, EncodedChunk& out) {
  if (!IsWhole(raw, 2)) return false;
  EncodeWindow(raw, PlanWindow(raw).base, scratch, out.payload);
  return true;
}

void DecodeWindow4(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw, CodecScratch&,
                   const ChunkInputs&) {
  DecodeWindow(payload, raw);
}

bool EncodeWidened(const ChunkShape& shape, ByteSpan raw, uint64_t, const RowSteps& steps,
                   CodecScratch& scratch, EncodedChunk& out) {
  if (!IsWhole(raw, 4)) return false;
  out = EncodeWide(shape, raw, scratch, EncoderAt(Effort::kFast, scratch, steps));
  return true;
}

bool EncodeHalvesApart(const ChunkShape& shape, ByteSpan raw, uint64_t, const RowSteps& steps,
                       CodecScratch& scratch, EncodedChunk& out) {
  if (!CanSplit(shape, raw.size()) || !IsWhole(raw, 2)) return false;
  out = EncodeSplit(shape, raw, scratch, EncoderAt(Effort::kFast, scratch, steps));
  return true;
}

// Stores the distinct rows at the fastest level.
bool EncodeRepeatedRows(const ChunkShape& shape, ByteSpan raw, uint64_t, const RowSteps& steps,
                        CodecScratch& scratch, EncodedChunk& out) {
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (raw.empty() || raw.size() % grid.rows != 0) return false;
  const uint64_t row_bytes = raw.size() / grid.rows;
  const RowPlan plan = FindRepeatedRows(raw, row_bytes, &scratch.context.arena);
  const std::span<std::byte> rows = NewRows(plan, raw, row_bytes, scratch);
  const auto new_steps = StepsOfNewRows(plan, steps, &scratch.context.arena);
  out = JoinRows(plan,
                 EncodeChunk(NewRowsShape(shape, plan, grid), rows, Effort::kFast, scratch,
                             RowSteps(new_steps)),
                 scratch);
  return true;
}

// Adapts decoders of wrappers, to which DecodeChunk is passed for the chunks inside.
template <auto kDecode>
void DecodeHolding(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                   CodecScratch& scratch, const ChunkInputs& inputs) {
  kDecode(shape, payload, raw, scratch, inputs, DecodeChunk);
}

template <CodecId kCodec>
void DecodeReferences(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                      CodecScratch& scratch, const ChunkInputs& inputs) {
  DecodeByReference(kCodec, shape, payload, raw, scratch, inputs, DecodeChunk);
}

bool EncodeDistribution(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat,
                        const RowSteps& steps, CodecScratch& scratch, EncodedChunk& out) {
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (!IsWhole(raw, 2) || !FitsCdf(grid.rows, grid.columns)) return false;
  return EncodeCdf(raw, MakeForm(shape), grid.rows, grid.columns, HeadDim(shape), steps, to_beat,
                   out.payload, &scratch.context.arena);
}

void DecodeDistribution(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                        CodecScratch& scratch, const ChunkInputs& inputs) {
  DecodeCdf(payload, MakeForm(shape), raw, inputs.steps, &scratch.context.arena);
}

bool EncodeInBlocks(const ChunkShape& shape, ByteSpan raw, uint64_t, const RowSteps&,
                    CodecScratch& scratch, EncodedChunk& out) {
  if (raw.empty() || raw.size() > kMaxBlockedBytes) return false;
  EncodeBlocks(shape.dtype, raw, kOnlyLiterals, scratch, out.payload);
  return true;
}

void DecodeFromBlocks(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                      CodecScratch& scratch, const ChunkInputs&) {
  DecodeBlocks(shape.dtype, payload, raw, scratch);
}

// Adapt codecs of halves to chunks of halves or of 8-bit floats.
template <auto kEncode>
bool EncodeHalves(const ChunkShape& shape, ByteSpan raw, uint64_t to_beat, const RowSteps& steps,
                  CodecScratch& scratch, EncodedChunk& out) {
  const Halves halves(shape.dtype, raw, &scratch.context.arena);
  return kEncode(HalvesShape(shape), halves.bytes(), to_beat, steps, scratch, out);
}

template <auto kDecode>
void DecodeHalves(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                  CodecScratch& scratch, const ChunkInputs& inputs) {
  if (IsHalfFloat(shape.dtype)) return kDecode(shape, payload, raw, scratch, inputs);
  ArenaVector<std::byte> halves(2 * raw.size(), &scratch.context.arena);
  kDecode(HalvesShape(shape), payload, halves, scratch, inputs);
  NarrowHalves(shape.dtype, halves, raw);
}

void DecodeTransformed(const ChunkShape& shape, ByteSpan, std::span<std::byte> raw, CodecScratch&,
                       const ChunkInputs& inputs) {
  if (inputs.transformed == nullptr)
    throw Error(Finding::kBadFrame, "a chunk of a transform decodes only in its archive");
  RestoreRows(shape, *inputs.transformed, raw);
}

// Ids are stored in archives: a row is never removed, and an id never reused.
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
     .takes = AreHalves,
     .since = Effort::kDefault,
     .encode = EncodeHalves<EncodePrev>,
     .decode = DecodeHalves<DecodePrev>},
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
     .decode = DecodeHolding<DecodeRepeatedRows>},
    {.id = CodecId::kLms,
     .name = "lms",
     .takes = AreHalves,
     .since = Effort::kHigh,
     .encode = EncodeHalves<EncodePrediction<false>>,
     .decode = DecodeHalves<DecodePrediction<false>>},
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
     .decode = DecodeHolding<DecodeWide>},
    {.id = CodecId::kCdf,
     .name = "cdf",
     .takes = AreHalves,
     .since = Effort::kMax,
     .tried = true,
     .encode = EncodeHalves<EncodeDistribution>,
     .decode = DecodeHalves<DecodeDistribution>},
    {.id = CodecId::kLike,
     .name = "like",
     .takes = AreHalves,
     .since = Effort::kHigh,
     .encode = EncodeHalves<EncodePrediction<true>>,
     .decode = DecodeHalves<DecodePrediction<true>>},
    // Used for pages in which K and V lie side by side; no level tries it on other chunks.
    {.id = CodecId::kSplit,
     .name = "split",
     .takes = AnyType,
     .since = Effort::kFast,
     .encode = EncodeHalvesApart,
     .decode = DecodeHolding<DecodeSplit>},
    {.id = CodecId::kRef,
     .name = "ref",
     .needs = {.references = true},
     .takes = AnyType,
     .since = Effort::kFast,
     .decode = DecodeReferences<CodecId::kRef>},
    {.id = CodecId::kRefCdf,
     .name = "ref-cdf",
     .needs = {.references = true},
     .takes = AreHalves,
     .since = Effort::kMax,
     .decode = DecodeReferences<CodecId::kRefCdf>},
    {.id = CodecId::kLayers,
     .name = "layers",
     .needs = {.neighbours = true},
     .takes = AreHalves,
     .since = Effort::kMax,
     .decode = DecodeHalves<DecodeByLayers>},
    {.id = CodecId::kProfiled,
     .name = "profiled",
     .needs = {.profile = true},
     .takes = IsHalfFloat,
     .since = Effort::kDefault,
     .decode = DecodeProfiled},
    {.id = CodecId::kRefLayers,
     .name = "ref-layers",
     .needs = {.references = true, .neighbours = true},
     .takes = AreHalves,
     .since = Effort::kMax,
     .decode = DecodeReferences<CodecId::kRefLayers>},
    {.id = CodecId::kRefSparse,
     .name = "ref-sparse",
     .needs = {.references = true},
     .takes = AreHalves,
     .since = Effort::kFast,
     .decode = DecodeReferences<CodecId::kRefSparse>},
    // Used for frames that a device decodes; no level tries it on other chunks.
    {.id = CodecId::kBlocks,
     .name = "blocks",
     .takes = AnyType,
     .since = Effort::kFast,
     .encode = EncodeInBlocks,
     .decode = DecodeFromBlocks},
    // Used for archives that a transform approximates; no level tries it.
    {.id = CodecId::kTransformed,
     .name = "transformed",
     .needs = {.transform = true},
     .takes = TakesTransform,
     .since = Effort::kFast,
     .decode = DecodeTransformed},
    {.id = CodecId::kProfiledLayers,
     .name = "profiled-layers",
     .needs = {.neighbours = true, .profile = true},
     .takes = AreHalves,
     .since = Effort::kMax,
     .decode = DecodeHalves<DecodeProfiledLayers>},
};

}  // namespace

std::span<const CodecRow> Codecs() { return kCodecs; }

const CodecRow* FindCodec(CodecId id) {
  const auto* row = std::find_if(std::begin(kCodecs), std::end(kCodecs),
                                 [&](const CodecRow& codec) { return codec.id == id; });
  return row == std::end(kCodecs) ? nullptr : row;
}

std::string_view Name(CodecId codec) {
  const CodecRow* row = FindCodec(codec);
  return row == nullptr ? std::string_view() : row->name;
}

bool HasReferences(CodecId codec) {
  const CodecRow* row = FindCodec(codec);
  return row != nullptr && row->needs.references;
}

bool HasNeighbours(CodecId codec) {
  const CodecRow* row = FindCodec(codec);
  return row != nullptr && row->needs.neighbours;
}

bool NeedsProfile(CodecId codec) {
  const CodecRow* row = FindCodec(codec);
  return row != nullptr && row->needs.profile;
}

bool NeedsOthers(CodecId codec) {
  const CodecRow* row = FindCodec(codec);
  return row != nullptr && (row->needs.references || row->needs.neighbours || row->needs.transform);
}

void DecodeChunk(CodecId codec, const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                 CodecScratch& scratch, const ChunkInputs& inputs) {
  const Arena::Scope temporaries(&scratch.context.arena);
  const CodecRow* row = FindCodec(codec);
  if (row != nullptr && row->takes(shape.dtype))
    return row->decode(shape, payload, raw, scratch, inputs);
  throw Error(Finding::kBadFrame, "there is no codec {} for {}", static_cast<unsigned>(codec),
              Name(shape.dtype));
}

}  // namespace kv
