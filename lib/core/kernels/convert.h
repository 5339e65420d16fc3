// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Bulk conversions between 16-bit floats and float, any alignment, equal on every SIMD target to
// the scalars of lib/core/base/half.h. `count` is in elements.
void HalfToFloat(const std::byte* from, float* to, size_t count) noexcept;
void BFloatToFloat(const std::byte* from, float* to, size_t count) noexcept;
void FloatToHalf(const float* from, std::byte* to, size_t count) noexcept;
void FloatToBFloat(const float* from, std::byte* to, size_t count) noexcept;

}  // namespace kv
