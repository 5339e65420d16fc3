// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/frame/frame.h"

// What encoding is going to gain and cost, from a sample, and how much memory it may take.
namespace kv {

struct FrameRate {
  double ratio = 1;                               // raw bytes over frame bytes
  double encode_bytes_s = 0, decode_bytes_s = 0;  // of one thread, as measured here and now
};

// A sample is not longer than this.
inline constexpr uint64_t kFrameSampleBytes = uint64_t{64} << 10;

// Encodes and decodes a sample: whole rows from places that are spread over `raw`, where it has
// rows, else bytes. A frame that resembles itself over long distances comes out smaller than
// estimated.
FrameRate EstimateFrame(const FrameDescription& description, ByteSpan raw, Effort level,
                        CodecScratch& scratch);

// The most memory that one FrameCoder takes on `threads` threads for calls of up to `raw_bytes`.
// Saturates.
uint64_t FrameCoderBytes(Effort level, uint64_t raw_bytes, uint64_t threads);

}  // namespace kv
