// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lib/core/base/bytes.h"
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
PredictorSet ParsePredictors(std::string_view list);
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

}  // namespace kv
