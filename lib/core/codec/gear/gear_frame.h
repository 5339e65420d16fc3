// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lib/core/base/bytes.h"
#include "lib/core/codec/backends.h"

// One byte plane as the MNN engine stores it: ten bytes of header and the smallest payload of
// {predictor} x {backend}. formats/gear/FORMAT.md is the grammar.
namespace kv {

// How a byte is predicted; the numbers are the `mode` byte of a frame, by the engine's choice.
enum class Predictor : uint8_t { kRaw = 0, kDeltaSeq = 1, kXorSeq = 2 };
std::string_view Name(Predictor predictor);

// The predictors an encoder may try. With none it takes raw, as the engine does.
struct PredictorSet {
  bool raw = true;
  bool delta_seq = true;
  bool xor_seq = true;

  bool operator==(const PredictorSet&) const = default;
};

// Reads a list as the engine does: split at commas, spaces and tabs around a name dropped, unknown
// names (pair_delta is one) ignored; a list that names no predictor means raw.
PredictorSet ParsePredictors(std::string_view list);
std::string ToText(const PredictorSet& set);

// What the encoder chose for a plane.
struct PlaneChoice {
  Predictor predictor = Predictor::kRaw;
  Backend backend = Backend::kRle;
  uint64_t raw_bytes = 0;
  uint64_t payload_bytes = 0;
};

constexpr uint64_t kPlaneHeaderBytes = 10;

// Appends the frame of a plane to `out`. Candidates are tried in the order raw, delta_seq, xor_seq,
// each with RLE and then zstd; a later one must be strictly smaller to win. Throws kLimit near 4
// GiB.
PlaneChoice EncodePlane(ByteSpan plane, const PredictorSet& predictors, bool use_zstd,
                        CodecScratch& scratch, Bytes& out);

// The same grammar at the speed of byte statistics: predictor raw, zstd frames without matches, or
// with the bytes as they are where statistics give nothing, which is looked for unless it is known.
enum class Noise : uint8_t { kUnknown, kNo, kYes };
PlaneChoice EncodeLiteralPlane(ByteSpan plane, Noise noise, CodecScratch& scratch, Bytes& out);

// A frame as it lies in the file, its structure checked but mode, codec and payload not yet.
struct PlaneFrame {
  uint64_t offset = 0;  // of the header
  uint8_t mode = 0;
  uint8_t codec = 0;
  uint32_t raw_bytes = 0;
  ByteSpan payload;
};

// Takes the next frame. Throws kTruncated, and kBadFrame for an empty plane with a payload.
PlaneFrame ReadPlaneFrame(ByteReader& reader);
// Throws kBadFrame for a mode or codec that does not exist, and for a plane larger than its payload
// can possibly hold.
void CheckPlaneFrame(const PlaneFrame& frame);
// Fills `plane` (raw_bytes long). Throws kBadFrame as CheckPlaneFrame, kBadPayload.
void DecodePlane(const PlaneFrame& frame, std::span<std::byte> plane, CodecScratch& scratch);

}  // namespace kv
