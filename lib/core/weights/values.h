// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>

#include "lib/core/base/tensor.h"

namespace kv {

// How rounding to another type changed the values.
struct RoundingCounts {
  uint64_t values = 0;
  uint64_t nan = 0;
  uint64_t infinite = 0;    // before and after
  uint64_t overflowed = 0;  // finite before, infinite after
  uint64_t flushed = 0;     // not zero before, zero after
  uint64_t changed = 0;     // any value that is another number now

  RoundingCounts& operator+=(const RoundingCounts& other);
};

// The values of `view` in C order as `to` (f32, f16 or bf16), exactly as torch's `.to(dtype)` on a
// CPU gives them: nearest, ties to even; f64 and integers go through f32, so f64 is rounded twice.
// NaN follows torch too, and so differs from lib/core/base/half.h: in f16 sign | 0x7e00, in bf16
// 0xffff (from f16 0x7fc0). The same type is copied bit by bit. Throws kUnsupportedDtype for
// block-quantised and 8-bit floats.
Bytes RoundValues(const TensorView& view, DType to, RoundingCounts* counts = nullptr);

}  // namespace kv
