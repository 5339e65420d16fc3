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

}  // namespace kv
