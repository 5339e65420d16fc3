// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/codec/gear/gear_frame.h"

// A tensor as the MNN engine compresses it: a word count and one frame per byte plane. 16-bit types
// (fp16 and bf16 alike) have two planes, fp32 has four. The file does not say how many it has.
namespace kv {

enum class GearKind : uint8_t { kTwoPlanes = 2, kFourPlanes = 4 };
constexpr uint32_t PlanesOf(GearKind kind) { return static_cast<uint32_t>(kind); }
constexpr uint32_t kMaxGearPlanes = 4;

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
