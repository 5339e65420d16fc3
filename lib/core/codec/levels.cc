// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The chooser: decides which codecs a chunk is tried with at each level, and keeps the smallest
// result. A level is a set of gains that a slower codec must promise, estimated from samples,
// before it is tried. Trying every codec would take the time that lower levels save. Codecs whose
// rows in table.cc say `tried` are exempt from these rules.

#include <algorithm>

#include "lib/core/codec/chunk.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/codec/floor.h"
#include "lib/core/codec/halves.h"
#include "lib/core/codec/planes/planes.h"
#include "lib/core/codec/wrappers/wrappers.h"

namespace kv {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;  // frames store sizes in 32 bits
// bytes of a chunk so short that trying matches takes next to no time
constexpr uint64_t kShortest = 8 << 10;

// zstd searches for matches if more than one in this many sampled words of four values occurred
// before. Long f16 chunks need more, because more of their words are equal by chance.
struct OneIn {
  uint64_t long_f16, short_f16, long_bf16, short_bf16, other;
};
// At level default zstd costs 4x the time of literals (10x for bf16), so a long chunk must promise
// 0.5 % to pay for it; short chunks are skipped only if it would shrink them by 0.1 % at most. The
// other levels search wherever real caches gained. scripts/check/levels.py fails if a chunk of
// testdata/llamacpp/states grows beyond the engine's own size by more than 0.1 %.
constexpr OneIn kWorthAnyTime{160, 288, 125, 125, 48}, kWorthDefault{24, 160, 48, 100, 48};
// A short f16 chunk with fewer repeats than one word in this many is coded as symbols without
// contexts, which save as much as so few matches would.
constexpr uint64_t kWorthSymbols = 400;

// Low bytes count as noise if statistics save less than one byte in this many.
constexpr uint64_t kNoiseOneIn = 64;
// Tolerance of an estimate from a sample: one byte in this many.
constexpr uint64_t kSampleErrorOneIn = 200;
// A window of exponents may cost this fraction more than the exponents' entropy, since it decodes
// at nearly the speed of a copy.
constexpr uint64_t kWindowLossOneIn = 50;
// Gains as one byte in this many: enough to stop searching, enough for level default to spend time
// on contexts, and enough to try predicting from the row above.
constexpr uint64_t kClearGainOneIn = 8, kDefaultGainOneIn = 100, kContextGainOneIn = 64;
// Matches that are larger by at most one byte in this many count as equal. The caller is then told
// that another order of the values may be worth trying (EncodedChunk::by_matches).
constexpr uint64_t kNearlyOneIn = 64;
// Repeated rows are removed if that saves more than this many bytes per row.
constexpr uint64_t kReferenceBytes = 8;

// zstd's level in plane blocks, per Effort.
constexpr int kBlockLevels[] = {kGearZstdLevel, kOnlyLiterals, 1, kGearZstdLevel, 19};

// Returns true if zstd's matches may beat byte statistics. The limits are the fewest repeats with
// which real caches gained.
bool WantsMatches(const Repeats& repeats, uint64_t raw_bytes, DType dtype, Effort effort) {
  const OneIn& limits = effort == Effort::kDefault ? kWorthDefault : kWorthAnyTime;
  const bool is_long = raw_bytes > kShortChunk;
  const uint64_t f16 = is_long ? limits.long_f16 : limits.short_f16,
                 bf16 = is_long ? limits.long_bf16 : limits.short_bf16;
  const uint64_t one_in = dtype == DType::kF16 ? f16 : dtype == DType::kBF16 ? bf16 : limits.other;
  return repeats.four * one_in > repeats.looked;
}

bool WantsMatches(ByteSpan raw, uint64_t rows, DType dtype, Effort effort) {
  return WantsMatches(CountRepeats(raw, raw.size() / rows, dtype), raw.size(), dtype, effort);
}

// Returns true if matches may beat a coder in context that needs `coded` bytes: if a fraction r of
// the groups of eight repeats, zstd is taken to save 2.5 r of `literal` for f16, 0.5 r for bf16.
bool WantsMatchesOver(ByteSpan raw, uint64_t rows, DType dtype, uint64_t literal, uint64_t coded) {
  if (coded >= literal) return true;
  const Repeats repeats = CountRepeats(raw, raw.size() / rows, dtype);
  const uint64_t halves = dtype == DType::kBF16 ? 1 : 5;
  return repeats.eight * halves * literal > 2 * repeats.looked * (literal - coded);
}

CodecId CompatCodecFor(DType dtype, ByteSpan raw) {
  if (raw.empty()) return CodecId::kRaw;
  const bool whole = raw.size() % Info(dtype).block_bytes == 0 && raw.size() <= kMostGearBytes;
  if (!whole) return CodecId::kZstd;
  if (IsHalfFloat(dtype)) return CodecId::kGear16;
  if (dtype == DType::kF32) return CodecId::kGear32;
  return HasBlockPlanes(dtype) ? CodecId::kZstdPlanes : CodecId::kZstd;
}

// Encodes as the engine does: searches exhaustively and writes the engine's container, whatever its
// size. The result may be longer than `raw`.
EncodedChunk EncodeCompat(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch) {
  EncodedChunk chunk{CompatCodecFor(shape.dtype, raw), scratch.NewPayload(), {}};
  const bool coded = FindCodec(chunk.codec)->encode(shape, raw, kAnySize, {}, scratch, chunk);
  KV_ASSERT(coded);
  return chunk;
}

void KeepSmaller(EncodedChunk& best, EncodedChunk candidate, CodecScratch& scratch) {
  if (candidate.payload.size() < best.payload.size()) std::swap(best, candidate);
  scratch.Recycle(std::move(candidate.payload));
}

EncodedChunk StoredRaw(ByteSpan raw, CodecScratch& scratch) {
  EncodedChunk chunk{CodecId::kRaw, scratch.NewPayload(), {}};
  chunk.payload.assign(raw.begin(), raw.end());
  return chunk;
}

// Codes both byte planes with Huffman tables only.
EncodedChunk EncodeLiterals(const ChunkShape& shape, ByteSpan raw, Noise low,
                            CodecScratch& scratch) {
  const bool rotl = shape.dtype != DType::kF16;
  const GearOptions literals{.predictors = {}, .rotl = rotl, .literals = true, .noise = {low}};
  EncodedChunk chunk{rotl ? CodecId::kRotated16 : CodecId::kGear16, scratch.NewPayload(), {}};
  chunk.payload.reserve(raw.size() + 64);
  chunk.planes = EncodeGear(GearKind::kTwoPlanes, raw, literals, scratch, chunk.payload);
  return chunk;
}

bool LowIsNoise(const HalfSurvey& survey, uint64_t count) {
  return survey.low_bytes >= count - count / kNoiseOneIn;
}

// Codes without contexts. If low bytes are noise, the upper bits of long chunks become symbols: a
// little smaller than zstd's literals, and half as fast again to decode. Short chunks become
// symbols only if `symbols` is set: they would take longer to encode without decoding faster.
EncodedChunk EncodeAlone(const ChunkShape& shape, ByteSpan raw, const HalfSurvey& survey,
                         uint64_t literal, bool symbols, CodecScratch& scratch) {
  const bool noise = LowIsNoise(survey, raw.size() / 2);
  if (noise && (symbols || raw.size() > kShortChunk)) {
    // `literal` is estimated from a sample, hence the tolerance.
    const std::optional<ContextPlan> plan = PlanContext(
        raw, survey, 1, raw.size() / 2, literal + literal / kSampleErrorOneIn, scratch.context);
    if (plan) {
      EncodedChunk chunk{CodecId::kPrev, scratch.NewPayload(), {}};
      EncodeContext(raw, *plan, scratch.context, chunk.payload);
      return chunk;
    }
  }
  return EncodeLiterals(shape, raw, noise ? Noise::kYes : Noise::kNo, scratch);
}

// Searches for matches as the engine does, but without predictors, which never win on caches. bf16
// words stay unrotated: values that repeat up to low mantissa bits repeat their signs together with
// the exponents, in one byte.
EncodedChunk EncodeMatches(ByteSpan raw, CodecScratch& scratch) {
  EncodedChunk chunk{CodecId::kGear16, scratch.NewPayload(), {}};
  GearOptions options;
  options.predictors.fill({.raw = true, .delta_seq = false, .xor_seq = false});
  chunk.planes = EncodeGear(GearKind::kTwoPlanes, raw, options, scratch, chunk.payload);
  chunk.by_matches = true;
  return chunk;
}

// Estimates the size of EncodeLiterals' result from the survey alone.
uint64_t LiteralBytes(const HalfSurvey& survey, uint64_t count) {
  constexpr uint64_t kHeaders = 4 + 2 * (kPlaneHeaderBytes + 12);
  const uint64_t tables = count / (128 << 10) * 64 + 64;
  const bool low_is_noise = survey.form.byte_shift == 0 && LowIsNoise(survey, count);
  return kHeaders + survey.high_bytes + survey.high_bytes / 256 + tables +
         (low_is_noise ? count : survey.low_bytes);
}

// Codes bf16 with exponents in four bits, unless their entropy is much lower, as it is for wide
// ranges.
std::optional<EncodedChunk> EncodeFast(ByteSpan raw, CodecScratch& scratch) {
  const WindowPlan plan = PlanWindow(raw);
  if (plan.window_bits > plan.entropy_bits + plan.entropy_bits / kWindowLossOneIn)
    return std::nullopt;
  EncodedChunk chunk{CodecId::kWindow4, scratch.NewPayload(), {}};
  EncodeWindow(raw, plan.base, scratch, chunk.payload);
  return chunk;
}

// Codes each value in the context of a prediction; nullopt unless that takes fewer than `to_beat`
// bytes. With a plan `like`, rows are also predicted from earlier rows that they resemble.
std::optional<EncodedChunk> EncodePredicted(const ChunkShape& shape, ByteSpan raw,
                                            const HalfSurvey& survey, const ChunkGrid& grid,
                                            const EarlierRowsPlan* like, uint64_t to_beat,
                                            const RowSteps& steps, CodecScratch& scratch) {
  EncodedChunk chunk{like != nullptr ? CodecId::kLike : CodecId::kLms, scratch.NewPayload(), {}};
  if (!EncodeLms(raw, survey, grid.rows, grid.columns, HeadDim(shape), like, to_beat, scratch,
                 chunk.payload, steps)) {
    scratch.Recycle(std::move(chunk.payload));
    return std::nullopt;
  }
  return chunk;
}

// Codes each value in the context of the row above or of a prediction; nullopt unless that takes
// fewer than `literal` bytes.
std::optional<EncodedChunk> EncodeInContext(const ChunkShape& shape, ByteSpan raw,
                                            const HalfSurvey& survey, uint64_t literal,
                                            Effort effort, const RowSteps& steps,
                                            CodecScratch& scratch) {
  const ChunkGrid grid = FindGrid(shape, raw.size());
  const bool predict = effort >= Effort::kHigh && grid.rows > 1 && grid.columns >= kRansLanes;
  std::optional<EncodedChunk> best;
  if (predict) {
    const std::optional<EarlierRowsPlan> like =
        PlanEarlierRows(raw, survey.form.bfloat, grid.rows, grid.columns, HeadDim(shape), steps,
                        &scratch.context.arena);
    if (like) best = EncodePredicted(shape, raw, survey, grid, &*like, literal, steps, scratch);
    if (best && best->payload.size() < literal - literal / kClearGainOneIn) return best;
    if (best) literal = best->payload.size();
  }
  // Contexts cost more time than literals, so level default asks for a gain of 1 %.
  const uint64_t to_beat =
      effort == Effort::kDefault ? literal - literal / kDefaultGainOneIn : literal;
  std::optional<ContextPlan> plan =
      PlanContext(raw, survey, grid.rows, grid.columns, to_beat, scratch.context);
  if (!plan) return best;
  // If the row above saves little as a context, predicting from it does not pay either.
  if (predict && plan->grid.rows > 1 && plan->bytes < literal - literal / kContextGainOneIn) {
    std::optional<EncodedChunk> predicted =
        EncodePredicted(shape, raw, survey, grid, nullptr, plan->bytes, steps, scratch);
    if (predicted) return predicted;
    // EncodeLms overwrote scratch.symbols, which the plan would have reused.
    plan->symbols_kept = false;
  }
  if (best) scratch.Recycle(std::move(best->payload));
  best = EncodedChunk{CodecId::kPrev, scratch.NewPayload(), {}};
  EncodeContext(raw, *plan, scratch.context, best->payload);
  return best;
}

// Tries every codec whose row in table.cc asks for it at this level, and keeps the smallest result.
void TryOthers(const ChunkShape& shape, ByteSpan raw, Effort effort, const RowSteps& steps,
               CodecScratch& scratch, EncodedChunk& best) {
  for (const CodecRow& codec : Codecs()) {
    if (!codec.tried || effort < codec.since || !codec.takes(shape.dtype)) continue;
    EncodedChunk candidate{codec.id, scratch.NewPayload(), {}};
    if (codec.encode(shape, raw, best.payload.size(), steps, scratch, candidate)) {
      KeepSmaller(best, std::move(candidate), scratch);
    } else {
      scratch.Recycle(std::move(candidate.payload));
    }
  }
}

// Chooses the coding of f16 and bf16 by the rules of each level.
EncodedChunk ChooseForHalves(const ChunkShape& shape, ByteSpan raw, Effort effort,
                             const RowSteps& steps, CodecScratch& scratch) {
  if (effort == Effort::kFast) {
    std::optional<EncodedChunk> fast;
    if (shape.dtype == DType::kBF16) fast = EncodeFast(raw, scratch);
    return fast ? *std::move(fast) : EncodeLiterals(shape, raw, Noise::kUnknown, scratch);
  }
  const ChunkGrid grid = FindGrid(shape, raw.size());
  const HalfSurvey survey = SurveyHalves(raw, MakeForm(shape), false);
  const uint64_t literal = LiteralBytes(survey, raw.size() / 2);
  std::optional<EncodedChunk> coded =
      EncodeInContext(shape, raw, survey, literal, effort, steps, scratch);
  if (effort == Effort::kMax) {
    if (!coded) coded = EncodeAlone(shape, raw, survey, literal, true, scratch);
    KeepSmaller(*coded, EncodeCompat(shape, raw, scratch), scratch);
  } else if (coded) {
    if (WantsMatchesOver(raw, grid.rows, shape.dtype, literal, coded->payload.size())) {
      EncodedChunk matches = EncodeMatches(raw, scratch);
      const uint64_t bytes = coded->payload.size();
      coded->by_matches = matches.payload.size() < bytes + bytes / kNearlyOneIn;
      KeepSmaller(*coded, std::move(matches), scratch);
    }
  } else {
    const Repeats repeats = CountRepeats(raw, raw.size() / grid.rows, shape.dtype);
    const bool matches = WantsMatches(repeats, raw.size(), shape.dtype, effort);
    const bool symbols = repeats.four * kWorthSymbols > repeats.looked;
    if (matches) coded = EncodeMatches(raw, scratch);
    // For f16 zstd falls back to literals where matches do not pay; for bf16 its literals are of
    // unrotated words, so the rotated ones are tried too.
    if (!matches || shape.dtype == DType::kBF16) {
      EncodedChunk alone = EncodeAlone(shape, raw, survey, literal, symbols, scratch);
      if (!coded) return alone;
      KeepSmaller(*coded, std::move(alone), scratch);
    }
  }
  return *std::move(coded);
}

// Returns true if matches among quants beat byte statistics. CountRepeats sees values that rows
// share but misses most other repeats, since words of eight bytes rarely align with blocks; a
// sample is therefore compressed both ways. Chunks not much longer than the sample are simply
// tried.
bool QuantsMatch(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch) {
  constexpr uint64_t kLeastSample = 8 << 10, kSampleOneIn = 16, kGainOneIn = 1000,
                     kRepeatsOneIn = 256;
  if (raw.size() <= 3 * kLeastSample) return true;
  const Repeats repeats =
      CountRepeats(raw, raw.size() / FindGrid(shape, raw.size()).rows, shape.dtype);
  if (repeats.four * kRepeatsOneIn > repeats.looked) return true;
  const uint64_t block = Info(shape.dtype).block_bytes,
                 wanted = std::max<uint64_t>(kLeastSample, raw.size() / kSampleOneIn);
  const ByteSpan sample = raw.first(wanted / block * block);
  std::array<uint64_t, 2> bytes{};
  for (const bool literals : {false, true}) {
    Bytes payload = scratch.NewPayload();
    bytes[literals ? 1 : 0] =
        EncodeBlockPlanes(shape.dtype, sample,
                          literals ? BlockFrames::kLiterals : BlockFrames::kMatches, scratch,
                          payload)
            .back()
            .payload_bytes;
    scratch.Recycle(std::move(payload));
  }
  return bytes[0] + bytes[1] / kGainOneIn < bytes[1];
}

BlockFrames FramesOfBlocks(const ChunkShape& shape, ByteSpan raw, Effort effort,
                           CodecScratch& scratch) {
  if (effort == Effort::kFast) return BlockFrames::kLiterals;
  return effort >= Effort::kHigh || QuantsMatch(shape, raw, scratch) ? BlockFrames::kSmaller
                                                                     : BlockFrames::kSmallerNarrow;
}

// Encodes f16 and bf16 at the highest level: first under distributions. If these save 1/16 and
// almost no values repeat, the weaker models and matches cannot win and are not tried.
EncodedChunk EncodeHalvesAtMax(const ChunkShape& shape, ByteSpan raw, const RowSteps& steps,
                               CodecScratch& scratch) {
  constexpr uint64_t kLargeGainOneIn = 16, kRareRepeatsOneIn = 64;
  EncodedChunk best = StoredRaw(raw, scratch);
  TryOthers(shape, raw, Effort::kMax, steps, scratch, best);
  const HalfSurvey survey = SurveyHalves(raw, MakeForm(shape), false);
  const uint64_t literal = LiteralBytes(survey, raw.size() / 2);
  if (best.payload.size() < literal - literal / kLargeGainOneIn) {
    const ChunkGrid grid = FindGrid(shape, raw.size());
    const Repeats repeats = CountRepeats(raw, raw.size() / grid.rows, shape.dtype);
    if (repeats.eight * kRareRepeatsOneIn < repeats.looked) return best;
  }
  KeepSmaller(best, ChooseForHalves(shape, raw, Effort::kMax, steps, scratch), scratch);
  return best;
}

// Encodes f16 and bf16.
EncodedChunk EncodeHalves(const ChunkShape& shape, ByteSpan raw, Effort effort,
                          const RowSteps& steps, CodecScratch& scratch) {
  if (effort == Effort::kMax) return EncodeHalvesAtMax(shape, raw, steps, scratch);
  EncodedChunk best = ChooseForHalves(shape, raw, effort, steps, scratch);
  TryOthers(shape, raw, effort, steps, scratch, best);
  return best;
}

// Encodes 8-bit floats. Above kFast they are coded as half floats are, at the highest level also
// with distributions. zstd, which codes single bytes well, is tried where matches may pay.
EncodedChunk EncodeByteFloats(const ChunkShape& shape, ByteSpan raw, Effort effort,
                              const RowSteps& steps, CodecScratch& scratch) {
  EncodedChunk best = StoredRaw(raw, scratch);
  if (effort > Effort::kFast) {
    const Halves halves(shape.dtype, raw, &scratch.context.arena);
    const ChunkShape inner = HalvesShape(shape);
    const HalfSurvey survey = SurveyHalves(halves.bytes(), MakeForm(inner), false);
    const uint64_t literal = LiteralBytes(survey, raw.size());
    std::optional<EncodedChunk> coded =
        EncodeInContext(inner, halves.bytes(), survey, literal, effort, steps, scratch);
    const bool predicted = coded && coded->codec != CodecId::kPrev;
    if (coded) KeepSmaller(best, *std::move(coded), scratch);
    // For halves a prediction with a clear gain ends the search; with so few bits per value the row
    // above may still be the better context.
    if (predicted) {
      coded =
          EncodeInContext(inner, halves.bytes(), survey, literal, Effort::kDefault, steps, scratch);
      if (coded) KeepSmaller(best, *std::move(coded), scratch);
    }
    TryOthers(shape, raw, effort, steps, scratch, best);
  }
  if (effort != Effort::kDefault || best.codec == CodecId::kRaw ||
      WantsMatches(raw, FindGrid(shape, raw.size()).rows, shape.dtype, effort)) {
    KeepSmaller(best, EncodeCompat(shape, raw, scratch), scratch);
  }
  return best;
}

bool IsHalves(DType dtype, ByteSpan raw) { return IsHalfFloat(dtype) && raw.size() % 2 == 0; }

EncodedChunk EncodeOnce(const ChunkShape& shape, ByteSpan raw, Effort effort, const RowSteps& steps,
                        CodecScratch& scratch) {
  if (IsHalves(shape.dtype, raw)) return EncodeHalves(shape, raw, effort, steps, scratch);
  if (FindByteShift(shape.dtype) != 0) return EncodeByteFloats(shape, raw, effort, steps, scratch);
  const bool whole = raw.size() % Info(shape.dtype).block_bytes == 0;
  EncodedChunk best;
  // f32 values are often widened halves: the upper 16 bits go through the codecs of halves.
  if (shape.dtype == DType::kF32 && whole) {
    const auto encode = [&](const ChunkShape& inner, ByteSpan halves) {
      EncodedChunk chunk = EncodeHalves(inner, halves, effort, steps, scratch);
      if (chunk.payload.size() < halves.size()) return chunk;
      scratch.Recycle(std::move(chunk.payload));
      return StoredRaw(halves, scratch);
    };
    best = EncodeWide(shape, raw, scratch, std::ref(encode));
    const uint64_t rows = FindGrid(shape, raw.size()).rows;
    if (effort == Effort::kMax ||
        (effort > Effort::kFast && WantsMatches(raw, rows, shape.dtype, effort))) {
      KeepSmaller(best, EncodeCompat(shape, raw, scratch), scratch);
    }
  } else if (HasBlockPlanes(shape.dtype) && whole) {
    best.codec = CodecId::kZstdPlanes;
    best.payload = scratch.NewPayload();
    const BlockFrames frames = FramesOfBlocks(shape, raw, effort, scratch);
    best.planes = EncodeBlockPlanes(shape.dtype, raw, frames, scratch, best.payload);
    best.by_matches = frames == BlockFrames::kSmaller;
  } else {
    best = EncodeCompat(shape, raw, scratch);
  }
  TryOthers(shape, raw, effort, steps, scratch, best);
  return best;
}

EncodedChunk EncodeRows(const ChunkShape& shape, ByteSpan raw, const RowPlan& plan,
                        const ChunkGrid& grid, Effort effort, const RowSteps& steps,
                        CodecScratch& scratch) {
  const std::span<std::byte> rows = NewRows(plan, raw, raw.size() / grid.rows, scratch);
  EncodedChunk inner;
  {
    const auto new_steps = StepsOfNewRows(plan, steps, &scratch.context.arena);
    inner = EncodeOnce(NewRowsShape(shape, plan, grid), rows, effort, RowSteps(new_steps), scratch);
  }
  if (inner.payload.size() >= rows.size()) {
    scratch.Recycle(std::move(inner.payload));
    inner = StoredRaw(rows, scratch);
  }
  EncodedChunk chunk = JoinRows(plan, std::move(inner), scratch);
  // If the distinct rows still have much in common, matches over all rows may need fewer bytes.
  if (effort == Effort::kMax) {
    KeepSmaller(chunk, EncodeOnce(shape, raw, effort, steps, scratch), scratch);
  } else if (IsHalves(shape.dtype, raw) &&
             (raw.size() <= kShortest || WantsMatches(rows, plan.unique, shape.dtype, effort))) {
    KeepSmaller(chunk, EncodeMatches(raw, scratch), scratch);
  } else if (!IsHalves(shape.dtype, raw)) {
    // Block rows may differ in few places only, as in the first layer, which matches exploit.
    KeepSmaller(chunk, EncodeCompat(shape, raw, scratch), scratch);
  }
  chunk.by_matches = true;
  return chunk;
}

// Encodes at the levels above kCompat. The result may be longer than `raw`.
EncodedChunk EncodeByCost(const ChunkShape& shape, ByteSpan raw, Effort effort,
                          const RowSteps& steps, CodecScratch& scratch) {
  if (raw.empty() || raw.size() > kMaxBytes) return EncodeCompat(shape, raw, scratch);
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (effort > Effort::kFast && grid.rows > 1 && raw.size() % grid.rows == 0) {
    const RowPlan plan = FindRepeatedRows(raw, raw.size() / grid.rows, &scratch.context.arena);
    // A reference costs some bytes, and a longer row saves more.
    if ((grid.rows - plan.unique) * (raw.size() / grid.rows) > kReferenceBytes * grid.rows) {
      return EncodeRows(shape, raw, plan, grid, effort, steps, scratch);
    }
  }
  return EncodeOnce(shape, raw, effort, steps, scratch);
}

}  // namespace

EncodedChunk EncodeChunk(const ChunkShape& shape, ByteSpan raw, Effort effort,
                         CodecScratch& scratch, const RowSteps& steps) {
  const Arena::Scope temporaries(&scratch.context.arena);
  scratch.Expect(raw.size());
  EncodedChunk chunk = effort == Effort::kCompat ? EncodeCompat(shape, raw, scratch)
                                                 : EncodeByCost(shape, raw, effort, steps, scratch);
  if (chunk.payload.size() >= raw.size()) {
    chunk.codec = CodecId::kRaw;
    chunk.payload.assign(raw.begin(), raw.end());
    chunk.planes.clear();
  }
  return chunk;
}

EncodedChunk EncodeChunkInBlocks(const ChunkShape& shape, ByteSpan raw, Effort effort,
                                 CodecScratch& scratch) {
  if (raw.empty()) return StoredRaw(raw, scratch);
  scratch.Expect(raw.size());
  EncodedChunk chunk{CodecId::kBlocks, scratch.NewPayload(), {}};
  EncodeBlocks(shape.dtype, raw, kBlockLevels[static_cast<size_t>(effort)], scratch, chunk.payload);
  return chunk;
}

InnerEncoder EncoderAt(Effort effort, CodecScratch& scratch, const RowSteps& steps) {
  return [effort, &scratch, steps](const ChunkShape& shape, ByteSpan raw) {
    return EncodeChunk(shape, raw, effort, scratch, steps);
  };
}

}  // namespace kv
