// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <span>

#include "lib/core/base/dtype.h"

namespace kv {

// Converts values of any dtype to float, in storage order. Blocks are decoded as ggml decodes them:
// value = d * q [+ m]. `out` has exactly as many elements as `values` holds.
void ToFloats(DType dtype, std::span<const std::byte> values, std::span<float> out) noexcept;

// Rounds floats to kF32, kF16 or kBF16, to nearest even.
void FromFloats(DType dtype, std::span<const float> values, std::byte* out) noexcept;

}  // namespace kv
