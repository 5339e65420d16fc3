// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"

// Pages of SGLang's pull request 21768, which was closed: K and V of a page, each a stream of
// components with static scales that DEFLATE packs. Reading and writing here excludes DEFLATE.
namespace kv::sglang {

struct PageStreams {
  uint8_t version = 0;  // 3: zlib's form, 4: raw DEFLATE
  bool is_split = false, is_coded = false, is_full = false;
  ByteSpan k, v;  // still packed
};
// Throws kBadMagic, kUnsupportedVersion, kBadField for unknown flags, kTruncated, kTrailingBytes.
PageStreams ReadPageStreams(ByteSpan page);

// A component's scale from calibration, and its bits: 0 (dropped), 2, 4 or 8 (E4M3).
struct StaticCode {
  float scale = 0;
  uint32_t bits = 0;
};

// Returns the stream of the components of one matrix, before DEFLATE.
Bytes WriteStream(std::span<const float> values, std::span<const StaticCode> codes);
// Returns the values of a stream; dropped components are 0. Throws kTruncated, kTrailingBytes,
// kBadField if its mask differs from that of the codes, kSizeMismatch.
std::vector<float> ReadStream(ByteSpan stream, std::span<const StaticCode> codes);

}  // namespace kv::sglang
