// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "lib/core/base/error.h"

namespace kv {

// Checked sums and products for sizes that come from a file. They throw kOverflow, naming `what`.
inline uint64_t CheckedAdd(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(Finding::kOverflow, std::string(what) + " overflows 64 bits");
  }
  return sum;
}

inline uint64_t CheckedMul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(Finding::kOverflow, std::string(what) + " overflows 64 bits");
  }
  return product;
}

inline uint64_t CheckedProduct(std::initializer_list<uint64_t> factors, std::string_view what) {
  uint64_t product = 1;
  for (uint64_t factor : factors) product = CheckedMul(product, factor, what);
  return product;
}

inline uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
inline uint64_t RoundUp(uint64_t a, uint64_t b) { return CeilDiv(a, b) * b; }

}  // namespace kv
