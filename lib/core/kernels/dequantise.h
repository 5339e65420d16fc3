// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <span>

#include "lib/core/base/dtype.h"

namespace kv {

// Values of any dtype as float, in storage order. Block types follow ggml: value = d * q [+ m].
// `out` has exactly the elements that `values` holds.
void ToFloats(DType dtype, std::span<const std::byte> values, std::span<float> out) noexcept;

}  // namespace kv
