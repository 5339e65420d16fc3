// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"

// KVTC as the kernels of NVIDIA Dynamo code it (lib/kvbm-kernels): coefficients of a transform, one
// row per KV block or token, in a buffer of ranges. The kernels' defects are reproduced and named.
namespace kv::dynamo {

// GPUs convert to E4M3 in hardware from sm_89 on. On older ones the kernels convert in software:
// magnitudes from 248 on become 448, those between 2^-10 and 2^-9 become 0, and -0 loses its sign.
enum class Fp8Path { kSm89, kSoft };
uint8_t ToFp8(float value, Fp8Path path);

// Components [begin, end) of every row, in fp8 (bits 0) or in integers of 1, 2, 4 or 8 bits.
struct Range {
  uint64_t begin = 0, end = 0;
  uint32_t bits = 0;

  uint64_t width() const { return end - begin; }
  uint64_t row_bytes() const;  // size of a row's codes
  bool operator==(const Range&) const = default;
};

// Minimum and maximum of a row, between which its integers lie. NaN counts for neither and decodes
// to the minimum.
struct Extremes {
  float least = 0, most = 0;
};
// Writes the codes, the first one in the lowest bits. Rows that span less than 1e-10 decode to the
// minimum; an infinity turns the whole row into NaNs.
Extremes EncodeRow(std::span<const float> row, uint32_t bits, std::byte* packed);
void DecodeRow(const Extremes& extremes, uint32_t bits, const std::byte* packed,
               std::span<float> out);

// Treatment of components that no range covers. The kernels read uninitialised memory for them.
enum class Gaps { kRefuse, kZero };

// Throws kBadField, naming the fault: a range that is empty, outside of the components or of other
// bits; ranges that overlap or leave a gap; several rows that do not fill whole bytes. The header
// counts such rows as packed without padding, but the kernels begin each at a byte and overwrite
// what follows.
void RequireSound(std::span<const Range> ranges, uint64_t rows, uint64_t components, Gaps gaps);

// Returns a whole buffer of rows [row][component].
Bytes WriteBuffer(std::span<const float> values, uint64_t rows, uint64_t components,
                  std::span<const Range> ranges, Fp8Path path, Gaps gaps = Gaps::kRefuse);

struct Buffer {
  std::vector<Range> ranges;
  std::vector<float> values;  // [row][component]
};
// Reads a buffer. It records neither the number of rows or components nor its own end, so the
// caller passes them. Throws kTruncated, kSizeMismatch, and as RequireSound does.
Buffer ReadBuffer(ByteSpan bytes, uint64_t rows, uint64_t components, Gaps gaps = Gaps::kRefuse);

}  // namespace kv::dynamo
