// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/rope.h"
#include "lib/core/transform/transform.h"
#include "lib/study/transform/form.h"

// SGLang's pages of KVTC in host memory, the allocation of their bits and the inverse rotation of
// its calibrator. kvtool needs none of them, but SGLang's own vectors of them prove the quantisers.
namespace kv::sglang {

struct Allocation {
  CodeSchema schema;
  uint64_t bits = 0;
  double error = 0;  // squared error summed over tokens, with dropped components
};
// Runs the calibrator's programme over measured errors, with its order of ties. It is slow, and
// meant for ranks of a few hundred. Throws kUnsupportedKind if nothing fits the budget.
Allocation Allocate(const transform::Rows& projected, uint64_t budget_bits);

// PageGroup holds the offsets of a group in a page.
struct PageGroup {
  uint64_t feature_begin = 0, feature_end = 0;
  CodeType type = CodeType::kFloat32;
  uint64_t payload_begin = 0, payload_end = 0;  // in elements; in int4, words of 8 codes
  int64_t scale = -1;                           // index among groups with a scale, or -1
};
std::vector<PageGroup> PageLayout(const CodeSchema& schema, uint64_t page_tokens);

struct Page {
  std::vector<float> float32;
  std::vector<uint16_t> bfloat16;
  std::vector<int8_t> int8;
  std::vector<int32_t> int4;              // 8 codes per word, the first in the lowest nibble
  std::vector<uint16_t> scales, offsets;  // binary16, [token][group]; offsets are negated
};
Page WritePage(const CodeSchema& schema, const transform::Rows& rows);
// Returns [token][component]. The page must have the sizes of the schema.
std::vector<float> ReadPage(const CodeSchema& schema, const Page& page, uint64_t page_tokens);

// Undoes the rotation of keys [token][row of dim] by the calibrator's table [token][cosines,
// sines], rounding each operation to the type of its dumps.
void UnrotateKeys(std::span<float> keys, uint32_t dim, std::span<const float> table,
                  RopePairs pairs, bool is_bfloat);

// Pages of SGLang's pull request 21768, which was closed: K and V of a page, each a stream of
// components with static scales that DEFLATE packs. Reading and writing here excludes DEFLATE.
struct PageStreams {
  uint8_t version = 0;  // 3: zlib's format, 4: raw DEFLATE
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
