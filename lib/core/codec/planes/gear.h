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

// One byte plane as the MNN engine stores it: a header of ten bytes and the smallest payload that
// any pair of predictor and backend gives. formats/gear/FORMAT.md is the grammar.
namespace kv {

// How a byte is predicted. The numbers are the `mode` byte of a frame, as the engine chose them.
enum class Predictor : uint8_t { kRaw = 0, kDeltaSeq = 1, kXorSeq = 2 };
std::string_view Name(Predictor predictor);

// The predictors that an encoder may try. If the set is empty, it takes raw, as the engine does.
struct PredictorSet {
  bool raw = true;
  bool delta_seq = true;
  bool xor_seq = true;

  bool operator==(const PredictorSet&) const = default;
};

// Reads a list as the engine does: splits it at commas, drops spaces and tabs around names, ignores
// unknown names (such as pair_delta). A list that names no predictor means raw.
// `unknown` receives these names, unless it is null.
PredictorSet ParsePredictors(std::string_view list, std::vector<std::string>* unknown = nullptr);
std::string ToText(const PredictorSet& set);

// The encoder's choice for one plane.
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

// Writes the same grammar at the speed of byte statistics: predictor raw and a zstd frame without
// matches, or with uncompressed bytes if statistics gain nothing. `noise` says whether they do, if
// the caller knows; kUnknown makes the encoder find out.
enum class Noise : uint8_t { kUnknown, kNo, kYes };
// Returns whether byte statistics of a sample gain nothing.
bool LooksLikeNoise(ByteSpan plane);
PlaneChoice EncodeLiteralPlane(ByteSpan plane, Noise noise, CodecScratch& scratch, Bytes& out);

// A frame as it lies in the file. Its structure has been checked; mode, codec and payload have not.
struct PlaneFrame {
  uint64_t offset = 0;  // of the header
  uint8_t mode = 0;
  uint8_t codec = 0;
  uint32_t raw_bytes = 0;
  ByteSpan payload;
};

// Takes the next frame. Throws kTruncated, and kBadFrame if an empty plane has a payload.
PlaneFrame ReadPlaneFrame(ByteReader& reader);
// Throws kBadFrame if the mode or the codec does not exist, or if the plane is larger than anything
// that its payload can decode to.
void CheckPlaneFrame(const PlaneFrame& frame);
// Fills `plane`, which is raw_bytes long. Throws kBadFrame as CheckPlaneFrame does, and
// kBadPayload.
void DecodePlane(const PlaneFrame& frame, std::span<std::byte> plane, CodecScratch& scratch);

// Division of words into byte planes, one after another: plane p holds byte p of every word.
struct WordPlanes {
  uint32_t count = 1;    // the bytes of a word: 1, 2 or 4
  bool rotated = false;  // words are first rotated left by one bit; two planes only

  bool operator==(const WordPlanes&) const = default;
};
// Returns the split of values of a type: bf16 is rotated, so that one plane holds whole exponents.
// Bytes that are no whole values are one plane.
WordPlanes ChoosePlanes(DType dtype, uint64_t raw_bytes);
// `raw` and `planes` have one size, a multiple of `count`, and must not overlap.
void SplitWords(const WordPlanes& split, ByteSpan raw, std::span<std::byte> planes);
void JoinWords(const WordPlanes& split, ByteSpan planes, std::span<std::byte> raw);

// A tensor as the MNN engine compresses it: a word count and one frame per byte plane. 16-bit types
// (fp16 and bf16 alike) have two planes, fp32 has four. The file does not say how many it has.

enum class GearKind : uint8_t { kTwoPlanes = 2, kFourPlanes = 4 };
constexpr uint32_t PlanesOf(GearKind kind) { return static_cast<uint32_t>(kind); }
constexpr uint32_t kMaxGearPlanes = 4;
// Gear counts in 32 bits; far below that limit a chunk has lost its point anyway.
constexpr uint64_t kMostGearBytes = uint64_t{2} << 30;

struct GearOptions {
  std::array<PredictorSet, kMaxGearPlanes> predictors;  // per plane, least significant byte first
  bool zstd = true;       // false: RLE only, as an engine built without zstd
  bool rotl = false;      // first rotate words left by one bit; two planes only
  bool literals = false;  // true: no search; every plane goes through EncodeLiteralPlane
  std::array<Noise, kMaxGearPlanes> noise{};  // per plane, for EncodeLiteralPlane
};

// The encoder's choices, one per plane.
using PlaneChoices = std::vector<PlaneChoice>;

// Appends the container of `raw` to `out`. Throws kSizeMismatch unless `raw` is one or more whole
// words, and kLimit as EncodePlane does.
PlaneChoices EncodeGear(GearKind kind, ByteSpan raw, const GearOptions& options,
                        CodecScratch& scratch, Bytes& out);

// The structure of a container, whose payloads have not been decoded.
struct GearLayout {
  uint32_t words = 0;
  std::vector<PlaneFrame> planes;

  uint64_t raw_bytes() const { return uint64_t{words} * planes.size(); }
};

// Reads a container of known kind. Its planes must be of equal length, nothing may be missing and
// nothing left over; throws kBadFrame, kTruncated, kTrailingBytes. The caller may then allocate
// raw_bytes(), because the payloads can really hold that much.
GearLayout ReadGear(GearKind kind, ByteSpan container);
// Reads a container of unknown kind: walks the frames and sees whether two or four of them fit.
GearLayout ReadGear(ByteSpan container);

// Decodes into `raw`. Throws kBadFrame unless it has the size that the container states.
void DecodeGear(GearKind kind, ByteSpan container, std::span<std::byte> raw, CodecScratch& scratch);
Bytes DecodeGear(GearKind kind, ByteSpan container, CodecScratch& scratch);

}  // namespace kv
