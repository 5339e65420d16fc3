// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// MNN's container of byte planes (gear.h): planes, predictors and backends. The search is
// exhaustive, as in MNN, so that the bytes equal MNN's. formats/gear/FORMAT.md is the grammar.

#include "lib/core/codec/planes/gear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "lib/core/base/utf8.h"
#include "lib/core/codec/context/model.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/kernels/predict.h"
#include "lib/core/kernels/rle.h"

namespace kv {

std::string_view Name(Predictor predictor) {
  switch (predictor) {
    case Predictor::kRaw:
      return "raw";
    case Predictor::kDeltaSeq:
      return "delta_seq";
    case Predictor::kXorSeq:
      return "xor_seq";
  }
  return "unknown";
}

PredictorSet ParsePredictors(std::string_view list, std::vector<std::string>* unknown) {
  PredictorSet set{.raw = false, .delta_seq = false, .xor_seq = false};
  for (const std::string_view part : Split(list, ',')) {
    const std::string_view name = Trimmed(part, " \t");
    set.raw |= name == Name(Predictor::kRaw);
    set.delta_seq |= name == Name(Predictor::kDeltaSeq);
    set.xor_seq |= name == Name(Predictor::kXorSeq);
    const bool is_known = name.empty() || name == Name(Predictor::kRaw) ||
                          name == Name(Predictor::kDeltaSeq) || name == Name(Predictor::kXorSeq);
    if (!is_known && unknown != nullptr) unknown->emplace_back(name);
  }
  set.raw |= !set.delta_seq && !set.xor_seq;
  return set;
}

std::string ToText(const PredictorSet& set) {
  std::string text;
  for (const auto& [enabled, predictor] :
       {std::pair{set.raw, Predictor::kRaw}, std::pair{set.delta_seq, Predictor::kDeltaSeq},
        std::pair{set.xor_seq, Predictor::kXorSeq}}) {
    if (!enabled) continue;
    if (!text.empty()) text += ',';
    text += Name(predictor);
  }
  return text.empty() ? std::string(Name(Predictor::kRaw)) : text;
}

namespace {

// Returns the plane as transformed by the predictor: `plane` itself or the scratch buffer.
ByteSpan Predict(Predictor predictor, ByteSpan plane, CodecScratch& scratch) {
  if (predictor == Predictor::kRaw) return plane;
  const std::span<std::byte> predicted = scratch.predicted.Get(plane.size());
  const auto encode = predictor == Predictor::kDeltaSeq ? DeltaEncode : XorEncode;
  encode(plane.data(), plane.size(), predicted.data());
  return predicted;
}

// The best pair so far; its zstd payload, if any, is in scratch.best.
struct Best {
  Predictor predictor = Predictor::kRaw;
  Backend backend = Backend::kRle;
  size_t bytes = std::numeric_limits<size_t>::max();
};

void Try(Predictor predictor, ByteSpan plane, bool use_zstd, CodecScratch& scratch, Best& best) {
  const ByteSpan predicted = Predict(predictor, plane, scratch);
  // Only the size of RLE is computed. It rarely wins, and writing it later is cheap.
  const size_t rle = RleEncodedSize(predicted.data(), predicted.size());
  if (rle < best.bytes) best = {predictor, Backend::kRle, rle};
  // A frame cannot be smaller than its headers, so a well-compressed plane skips zstd.
  if (!use_zstd || Zstd::Floor(plane.size()) >= best.bytes) return;
  const std::span<std::byte> candidate = scratch.candidate.Get(Zstd::Bound(plane.size()));
  const size_t zstd = scratch.zstd.Compress(predicted, candidate);
  if (zstd == 0 || zstd >= best.bytes) return;
  best = {predictor, Backend::kZstd, zstd};
  std::swap(scratch.best, scratch.candidate);
}

void AppendHeader(const PlaneChoice& choice, Bytes& out) {
  std::byte header[kPlaneHeaderBytes];
  header[0] = static_cast<std::byte>(choice.predictor);
  header[1] = static_cast<std::byte>(choice.backend);
  StoreLE(header + 2, static_cast<uint32_t>(choice.raw_bytes));
  StoreLE(header + 6, static_cast<uint32_t>(choice.payload_bytes));
  out.insert(out.end(), header, header + kPlaneHeaderBytes);
}

}  // namespace

// zstd stores literals that would shrink by less than 1/64.
bool LooksLikeNoise(ByteSpan plane) {
  // Tries a small sample first, which suffices for most planes that are not noise.
  for (const size_t most : {1 << 9, 1 << 11}) {
    const size_t step = plane.size() / most | 1;  // an odd step is no multiple of a row
    std::array<uint32_t, 256> counts{};
    uint64_t sampled = 0;
    for (size_t i = 0; i < plane.size(); i += step, ++sampled)
      ++counts[static_cast<uint8_t>(plane[i])];
    // Few samples understate the entropy by 0.72 bit per value that occurs (Miller-Madow); 47274 is
    // 0.72 in 16-bit fixed point.
    uint64_t present = 0;
    for (const uint32_t n : counts) present += n != 0;
    const uint64_t bits16 = EntropyBits16(counts.data(), 256) + present * 47274;
    const uint64_t tolerated = most < 1 << 11 ? sampled / 2 : sampled / 8;
    if (bits16 / 65536 < sampled * 8 - tolerated) return false;
  }
  return true;
}

// The order of the attempts is the engine's, and ties keep the earlier one: the bytes must be
// equal.
PlaneChoice EncodePlane(ByteSpan plane, const PredictorSet& predictors, bool use_zstd,
                        CodecScratch& scratch, Bytes& out) {
  if (RleBound(plane.size()) > std::numeric_limits<uint32_t>::max()) {
    throw Error(Finding::kLimit, "a plane has {} bytes, but gear frames count in 32 bits",
                plane.size());
  }
  if (plane.empty()) {
    AppendHeader({}, out);
    return {};
  }
  Best best;
  const bool any = predictors.raw || predictors.delta_seq || predictors.xor_seq;
  if (predictors.raw || !any) Try(Predictor::kRaw, plane, use_zstd, scratch, best);
  if (predictors.delta_seq) Try(Predictor::kDeltaSeq, plane, use_zstd, scratch, best);
  if (predictors.xor_seq) Try(Predictor::kXorSeq, plane, use_zstd, scratch, best);
  const PlaneChoice choice{best.predictor, best.backend, plane.size(), best.bytes};
  AppendHeader(choice, out);
  if (best.backend == Backend::kZstd) {
    const std::span<std::byte> payload = scratch.best.Get(best.bytes);
    out.insert(out.end(), payload.begin(), payload.end());
  } else {
    const ByteSpan predicted = Predict(best.predictor, plane, scratch);
    const size_t at = out.size();
    out.resize(at + best.bytes);
    RleEncode(predicted.data(), predicted.size(), out.data() + at);
  }
  return choice;
}

PlaneChoice EncodeLiteralPlane(ByteSpan plane, Noise noise, CodecScratch& scratch, Bytes& out) {
  const bool is_noise = noise == Noise::kUnknown ? LooksLikeNoise(plane) : noise == Noise::kYes;
  const std::span<std::byte> frame = scratch.candidate.Get(Zstd::Bound(plane.size()));
  size_t size = is_noise ? 0 : scratch.zstd.CompressLiterals(plane, frame);
  const bool store = size == 0 || size >= plane.size();
  if (store) size = Zstd::StoredSize(plane.size());
  const PlaneChoice choice{Predictor::kRaw, Backend::kZstd, plane.size(), size};
  AppendHeader(choice, out);
  if (store) {
    Zstd::Store(plane, out);
  } else {
    out.insert(out.end(), frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
  }
  return choice;
}

PlaneFrame ReadPlaneFrame(ByteReader& reader) {
  PlaneFrame frame;
  frame.offset = reader.offset();
  frame.mode = reader.U8("mode");
  frame.codec = reader.U8("codec");
  frame.raw_bytes = reader.U32("raw_len");
  const uint32_t payload_bytes = reader.U32("payload_len");
  frame.payload = reader.Take(payload_bytes, "payload");
  if (frame.raw_bytes == 0 && payload_bytes != 0) {
    throw Error(Finding::kBadFrame, "raw_len is 0, but {} bytes of payload follow", payload_bytes)
        .At(frame.offset + 2);
  }
  return frame;
}

void CheckPlaneFrame(const PlaneFrame& frame) {
  if (frame.raw_bytes == 0) return;
  if (frame.codec > static_cast<uint8_t>(Backend::kZstd)) {
    throw Error(Finding::kBadFrame, "codec {} does not exist (expected 0 = rle, 1 = zstd)",
                frame.codec)
        .At(frame.offset + 1);
  }
  if (frame.mode > static_cast<uint8_t>(Predictor::kXorSeq)) {
    throw Error(Finding::kBadFrame,
                "mode {} does not exist (expected 0 = raw, 1 = delta_seq, 2 = xor_seq)", frame.mode)
        .At(frame.offset);
  }
  const auto backend = static_cast<Backend>(frame.codec);
  const uint64_t most = MaxDecodedBytes(backend, frame.payload);
  if (frame.raw_bytes > most) {
    throw Error(Finding::kBadFrame,
                "raw_len is {}, but the {} payload of {} bytes holds at most {}", frame.raw_bytes,
                Name(backend), frame.payload.size(), most)
        .At(frame.offset + 2);
  }
}

void DecodePlane(const PlaneFrame& frame, std::span<std::byte> plane, CodecScratch& scratch) {
  KV_ASSERT(plane.size() == frame.raw_bytes);
  CheckPlaneFrame(frame);
  if (plane.empty()) return;
  const auto backend = static_cast<Backend>(frame.codec);
  const bool decoded =
      backend == Backend::kRle
          ? RleDecode(frame.payload.data(), frame.payload.size(), plane.data(), plane.size())
          : scratch.zstd.Decompress(frame.payload, plane);
  if (!decoded) {
    throw Error(Finding::kBadPayload, "the {} payload of {} bytes does not decode to {} bytes",
                Name(backend), frame.payload.size(), plane.size())
        .At(frame.offset + kPlaneHeaderBytes);
  }
  switch (static_cast<Predictor>(frame.mode)) {
    case Predictor::kRaw:
      return;
    case Predictor::kDeltaSeq:
      return DeltaDecode(plane.data(), plane.size(), plane.data());
    case Predictor::kXorSeq:
      return XorDecode(plane.data(), plane.size(), plane.data());
  }
}

namespace {

// Words are split and joined this many at a time, so that rotated ones stay in the first-level
// cache.
constexpr size_t kWordsAtOnce = 4096;

}  // namespace

WordPlanes ChoosePlanes(DType dtype, uint64_t raw_bytes) {
  const DTypeInfo& info = Info(dtype);
  const bool is_word = info.block_elements == 1 && (info.block_bytes == 2 || info.block_bytes == 4);
  if (!is_word || raw_bytes % info.block_bytes != 0) return {};
  return {info.block_bytes, dtype == DType::kBF16};
}

void SplitWords(const WordPlanes& split, ByteSpan raw, std::span<std::byte> planes) {
  const size_t words = raw.size() / split.count;
  KV_ASSERT(planes.size() == raw.size() && words * split.count == raw.size());
  std::byte* const to = planes.data();
  if (split.count == 1) {
    std::ranges::copy(raw, to);
  } else if (split.count == 4) {
    std::byte* const of_words[] = {to, to + words, to + 2 * words, to + 3 * words};
    SplitPlanes4(raw.data(), words, of_words);
  } else if (!split.rotated) {
    SplitPlanes2(raw.data(), words, to, to + words);
  } else {
    alignas(64) std::byte rotated[2 * kWordsAtOnce];
    for (size_t at = 0; at < words; at += kWordsAtOnce) {
      const size_t count = std::min(kWordsAtOnce, words - at);
      Rotl16(raw.data() + 2 * at, count, rotated);
      SplitPlanes2(rotated, count, to + at, to + words + at);
    }
  }
}

void JoinWords(const WordPlanes& split, ByteSpan planes, std::span<std::byte> raw) {
  const size_t words = raw.size() / split.count;
  KV_ASSERT(planes.size() == raw.size() && words * split.count == raw.size());
  const std::byte* const from = planes.data();
  if (split.count == 1) {
    std::ranges::copy(planes, raw.data());
  } else if (split.count == 4) {
    const std::byte* const of_words[] = {from, from + words, from + 2 * words, from + 3 * words};
    JoinPlanes4(of_words, words, raw.data());
  } else if (!split.rotated) {
    JoinPlanes2(from, from + words, words, raw.data());
  } else {
    for (size_t at = 0; at < words; at += kWordsAtOnce) {
      const size_t count = std::min(kWordsAtOnce, words - at);
      std::byte* const to = raw.data() + 2 * at;
      JoinPlanes2(from + at, from + words + at, count, to);
      Rotr16(to, count, to);
    }
  }
}

PlaneChoices EncodeGear(GearKind kind, ByteSpan raw, const GearOptions& options,
                        CodecScratch& scratch, Bytes& out) {
  const uint32_t count = CountPlanes(kind);
  if (raw.empty() || raw.size() % count != 0) {
    throw Error(Finding::kSizeMismatch, "{} bytes are not a positive number of {}-byte words",
                raw.size(), count);
  }
  const size_t words = raw.size() / count;
  if (words > std::numeric_limits<uint32_t>::max()) {
    throw Error(Finding::kLimit, "there are {} words, but a gear container counts them in 32 bits",
                words);
  }
  const std::span<std::byte> planes = scratch.planes.Get(raw.size());
  SplitWords({count, options.rotl}, raw, planes);
  std::byte header[4];
  StoreLE(header, static_cast<uint32_t>(words));
  out.insert(out.end(), header, header + sizeof(header));
  PlaneChoices choices;
  for (uint32_t b = 0; b < count; ++b) {
    const ByteSpan bytes = planes.subspan(b * words, words);
    choices.push_back(options.literals
                          ? EncodeLiteralPlane(bytes, options.noise[b], scratch, out)
                          : EncodePlane(bytes, options.predictors[b], options.zstd, scratch, out));
  }
  return choices;
}

namespace {

uint32_t ReadWords(ByteReader& reader) {
  const uint32_t words = reader.U32("word count");
  if (words == 0) throw Error(Finding::kBadFrame, "the word count is 0").At(0);
  return words;
}

void ReadPlanes(ByteReader& reader, uint32_t count, GearLayout& layout) {
  while (layout.planes.size() < count) {
    const size_t plane = layout.planes.size();
    try {
      const PlaneFrame frame = ReadPlaneFrame(reader);
      if (frame.raw_bytes != layout.words) {
        throw Error(Finding::kBadFrame, "raw_len is {}, but the container has {} words",
                    frame.raw_bytes, layout.words)
            .At(frame.offset + 2);
      }
      CheckPlaneFrame(frame);
      layout.planes.push_back(frame);
    } catch (Error& error) {
      error.In(fmt::format("plane {}", plane));
      throw;
    }
  }
}

}  // namespace

GearLayout ReadGear(GearKind kind, ByteSpan container) {
  ByteReader reader(container);
  GearLayout layout;
  layout.words = ReadWords(reader);
  ReadPlanes(reader, CountPlanes(kind), layout);
  reader.ExpectEnd(fmt::format("plane {}, the last", CountPlanes(kind) - 1));
  return layout;
}

GearLayout ReadGear(ByteSpan container) {
  ByteReader reader(container);
  GearLayout layout;
  layout.words = ReadWords(reader);
  ReadPlanes(reader, CountPlanes(GearKind::kTwoPlanes), layout);
  if (reader.at_end()) return layout;
  ReadPlanes(reader, CountPlanes(GearKind::kFourPlanes), layout);
  reader.ExpectEnd("plane 3, the last");
  return layout;
}

namespace {

// Decodes all planes, one after another, into a scratch buffer.
ByteSpan DecodePlanes(const GearLayout& layout, CodecScratch& scratch) {
  const size_t words = layout.words;
  const std::span<std::byte> planes = scratch.planes.Get(layout.raw_bytes());
  for (size_t b = 0; b < layout.planes.size(); ++b) {
    try {
      DecodePlane(layout.planes[b], planes.subspan(b * words, words), scratch);
    } catch (Error& error) {
      error.In(fmt::format("plane {}", b));
      throw;
    }
  }
  return planes;
}

}  // namespace

void DecodeGear(GearKind kind, ByteSpan container, std::span<std::byte> raw,
                CodecScratch& scratch) {
  const GearLayout layout = ReadGear(kind, container);
  if (layout.raw_bytes() != raw.size()) {
    throw Error(Finding::kBadFrame, "the container holds {} bytes, expected {}", layout.raw_bytes(),
                raw.size())
        .At(0);
  }
  JoinWords({CountPlanes(kind), false}, DecodePlanes(layout, scratch), raw);
}

Bytes DecodeGear(GearKind kind, ByteSpan container, CodecScratch& scratch) {
  const GearLayout layout = ReadGear(kind, container);
  try {
    // Planes are decoded first: their memory is untouched until a payload fills it, so that a
    // damaged container costs no more memory than it really holds.
    const ByteSpan planes = DecodePlanes(layout, scratch);
    Bytes raw(layout.raw_bytes());
    JoinWords({CountPlanes(kind), false}, planes, raw);
    return raw;
  } catch (const std::bad_alloc&) {
    throw Error(Finding::kLimit, "decoding needs {} bytes of memory", 2 * layout.raw_bytes());
  }
}

}  // namespace kv
