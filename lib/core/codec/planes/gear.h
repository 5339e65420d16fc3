// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"
#include "lib/core/codec/backends.h"

// Byte planes as the MNN engine stores them: a header of ten bytes and the smallest payload that
// any pair of predictor and backend gives. formats/gear/FORMAT.md is the grammar.
namespace kv {

// Transforms of a plane before coding. The numbers are the `mode` byte of a frame, which the engine
// defines.
enum class Predictor : uint8_t { kRaw = 0, kDeltaSeq = 1, kXorSeq = 2 };
std::string_view Name(Predictor predictor);

// The predictors that an encoder may try. An empty set means raw, as in the engine.
struct PredictorSet {
  bool raw = true;
  bool delta_seq = true;
  bool xor_seq = true;

  bool operator==(const PredictorSet&) const = default;
};

// Parses a list as the engine does: splits it at commas, strips spaces and tabs around names, and
// ignores unknown names (such as pair_delta). A list without a known name means raw. `unknown`
// receives the unknown names, unless it is nullptr.
PredictorSet ParsePredictors(std::string_view list, std::vector<std::string>* unknown = nullptr);
std::string ToText(const PredictorSet& set);

// PlaneChoice is the encoder's choice for one plane.
struct PlaneChoice {
  Predictor predictor = Predictor::kRaw;
  Backend backend = Backend::kRle;
  uint64_t raw_bytes = 0;
  uint64_t payload_bytes = 0;
};

constexpr uint64_t kPlaneHeaderBytes = 10;

// Appends the frame of a plane to `out`. Tries raw, delta_seq and xor_seq in this order, each with
// RLE and then zstd; a later candidate wins only if it is strictly smaller. Throws kLimit near 4
// GiB.
PlaneChoice EncodePlane(ByteSpan plane, const PredictorSet& predictors, bool use_zstd,
                        CodecScratch& scratch, Bytes& out);

// Tells EncodeLiteralPlane whether byte statistics gain nothing on the plane; kUnknown makes it
// find out.
enum class Noise : uint8_t { kUnknown, kNo, kYes };
// Returns true if byte statistics of a sample gain nothing.
bool LooksLikeNoise(ByteSpan plane);
// Writes a frame of the same grammar quickly: predictor raw, and zstd without matches, or the bytes
// uncompressed if they are noise.
PlaneChoice EncodeLiteralPlane(ByteSpan plane, Noise noise, CodecScratch& scratch, Bytes& out);

// A frame as found in the file. Its structure has been checked; mode, codec and payload have not.
struct PlaneFrame {
  uint64_t offset = 0;  // offset of the header
  uint8_t mode = 0;
  uint8_t codec = 0;
  uint32_t raw_bytes = 0;
  ByteSpan payload;
};

// Takes the next frame. Throws kTruncated, and kBadFrame if an empty plane has a payload.
PlaneFrame ReadPlaneFrame(ByteReader& reader);
// Throws kBadFrame if the mode or the codec does not exist, or if the plane is larger than its
// payload can decode to.
void CheckPlaneFrame(const PlaneFrame& frame);
// Decodes into `plane`, which is raw_bytes long. Throws kBadFrame as CheckPlaneFrame, and
// kBadPayload.
void DecodePlane(const PlaneFrame& frame, std::span<std::byte> plane, CodecScratch& scratch);

// The split of words into byte planes, one after another: plane p holds byte p of every word.
struct WordPlanes {
  uint32_t count = 1;    // bytes of a word: 1, 2 or 4
  bool rotated = false;  // words are first rotated left by one bit; two planes only

  bool operator==(const WordPlanes&) const = default;
};
// Returns the split for values of a type. bf16 is rotated, so that one plane holds whole exponents.
// Bytes that are not whole values form one plane.
WordPlanes ChoosePlanes(DType dtype, uint64_t raw_bytes);
// `raw` and `planes` have the same size, a multiple of `count`, and must not overlap.
void SplitWords(const WordPlanes& split, ByteSpan raw, std::span<std::byte> planes);
void JoinWords(const WordPlanes& split, ByteSpan planes, std::span<std::byte> raw);

// A tensor as the MNN engine compresses it: a word count and one frame per byte plane. 16-bit types
// (fp16 and bf16 alike) have two planes, fp32 has four. The file does not store the number of
// planes.

enum class GearKind : uint8_t { kTwoPlanes = 2, kFourPlanes = 4 };
constexpr uint32_t CountPlanes(GearKind kind) { return static_cast<uint32_t>(kind); }
constexpr uint32_t kMaxGearPlanes = 4;
// Gear counts in 32 bits; chunks stay far below that limit, and longer ones go to zstd.
constexpr uint64_t kMostGearBytes = uint64_t{2} << 30;

struct GearOptions {
  std::array<PredictorSet, kMaxGearPlanes> predictors;  // per plane, least significant byte first
  bool zstd = true;       // false: RLE only, as in an engine built without zstd
  bool rotl = false;      // first rotate words left by one bit; two planes only
  bool literals = false;  // true: no search; every plane goes through EncodeLiteralPlane
  std::array<Noise, kMaxGearPlanes> noise{};  // per plane, for EncodeLiteralPlane
};

// The encoder's choices, one per plane.
using PlaneChoices = std::vector<PlaneChoice>;

// Appends the container of `raw` to `out`. Throws kSizeMismatch unless `raw` is one or more whole
// words, and kLimit as EncodePlane.
PlaneChoices EncodeGear(GearKind kind, ByteSpan raw, const GearOptions& options,
                        CodecScratch& scratch, Bytes& out);

// The structure of a container, before its payloads are decoded.
struct GearLayout {
  uint32_t words = 0;
  std::vector<PlaneFrame> planes;

  uint64_t raw_bytes() const { return uint64_t{words} * planes.size(); }
};

// Reads a container of known kind. Throws kBadFrame, kTruncated or kTrailingBytes unless it
// consists of exactly that many planes of equal length. The caller may then allocate raw_bytes(),
// because the payloads can really decode to that much.
GearLayout ReadGear(GearKind kind, ByteSpan container);
// Reads a container of unknown kind: walks the frames to find out whether it has two or four
// planes.
GearLayout ReadGear(ByteSpan container);

// Decodes into `raw`. Throws kBadFrame unless its size is the one that the container states.
void DecodeGear(GearKind kind, ByteSpan container, std::span<std::byte> raw, CodecScratch& scratch);
Bytes DecodeGear(GearKind kind, ByteSpan container, CodecScratch& scratch);

}  // namespace kv
