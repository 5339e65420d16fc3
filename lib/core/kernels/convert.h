// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Convert `count` elements between float and a 16-bit float type, with the results of the scalar
// functions in lib/core/base/half.h on every SIMD target. Any alignment; little-endian.
void HalfToFloat(const std::byte* from, float* to, size_t count) noexcept;
void BFloatToFloat(const std::byte* from, float* to, size_t count) noexcept;
void FloatToHalf(const float* from, std::byte* to, size_t count) noexcept;
void FloatToBFloat(const float* from, std::byte* to, size_t count) noexcept;

}  // namespace kv
