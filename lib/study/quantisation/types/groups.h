// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// Integer codes of groups with a range of their own, as KIVI, transformers (quanto) and KVQuant
// make them. A group is `count` values, `step` apart. What each function writes to `out` is what
// attention reads.
namespace kv::quant {

struct GroupCodes {
  std::vector<uint8_t> codes;  // one a value, unpacked
  float scale = 0;
  float shift = 0;  // KIVI: the minimum; quanto: its negative
};

// KIVI: every operation rounds to binary16. A constant group has codes 0 and the minimum.
GroupCodes StoreKivi(const float* values, size_t count, size_t step, uint32_t bits, float* out);

// Whether arithmetic rounds to binary16 or stays binary32: quanto uses the model's type.
enum class Arithmetic { kHalf, kFloat };
// Constant groups are undefined there; here they come back as they are.
GroupCodes StoreQuanto(const float* values, size_t count, size_t step, uint32_t bits,
                       Arithmetic arithmetic, float* out);

// KVQuant's integer quantiser with ranges of the values themselves. The zero point is clamped, so
// that groups of one sign lose. With `sparse`, values at or beyond the 0.5% and 99.5% quantiles are
// kept as they are. Returns how many were.
uint64_t StoreKvQuant(const float* values, size_t count, size_t step, uint32_t bits, bool sparse,
                      float* out);

}  // namespace kv::quant
