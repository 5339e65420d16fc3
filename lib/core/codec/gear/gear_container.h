// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/codec/gear/gear_frame.h"

// A tensor as the MNN engine compresses it: a word count and one frame per byte plane. Two planes
// for 16-bit types (fp16, and bf16 alike), four for fp32. The file does not say which.
namespace kv {

enum class GearKind : uint8_t { kTwoPlanes = 2, kFourPlanes = 4 };
constexpr uint32_t PlanesOf(GearKind kind) { return static_cast<uint32_t>(kind); }
constexpr uint32_t kMaxGearPlanes = 4;

struct GearOptions {
  std::array<PredictorSet, kMaxGearPlanes> predictors;  // per plane, least significant byte first
  bool zstd = true;       // false: RLE only, as the engine without the library
  bool rotate = false;    // two planes only: of the words rotated left by one bit
  bool literals = false;  // true: no choice at all, EncodeLiteralPlane
  std::array<Noise, kMaxGearPlanes> noise{};  // for that
};

// What the encoder did: one entry per plane.
using PlaneChoices = std::vector<PlaneChoice>;

// Appends the container of `raw` to `out`. Throws kSizeMismatch unless `raw` is a whole number of
// words, at least one; kLimit as EncodePlane.
PlaneChoices EncodeGear(GearKind kind, ByteSpan raw, const GearOptions& options,
                        CodecScratch& scratch, Bytes& out);

// A container's structure; payloads are not decoded.
struct GearLayout {
  uint32_t words = 0;
  std::vector<PlaneFrame> planes;

  uint64_t raw_bytes() const { return uint64_t{words} * planes.size(); }
};

// Reads a container of known kind: planes of equal length, nothing missing and nothing left over.
// Throws kBadFrame, kTruncated, kTrailingBytes. After it, raw_bytes() is a size that the file
// justifies.
GearLayout ReadGear(GearKind kind, ByteSpan container);
// The same where the kind is not known: walks the frames and sees whether two or four fit.
GearLayout ReadGear(ByteSpan container);

// Decodes into `raw`, which must have the size the container says (else kBadFrame).
void DecodeGear(GearKind kind, ByteSpan container, std::span<std::byte> raw, CodecScratch& scratch);
Bytes DecodeGear(GearKind kind, ByteSpan container, CodecScratch& scratch);

}  // namespace kv
