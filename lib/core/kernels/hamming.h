// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv {

struct NearestSignature {
  uint32_t distance = 0;  // number of bits that differ from the query
  uint32_t age = 0;       // its distance from the end: 1 is the last signature
};

// Finds the signature that differs from `query` in the fewest bits, the last one if several do.
// There are `count` > 0 signatures of `words` 64-bit words each; word w of signature i is
// signatures[w * stride + i]. Equal on every SIMD target.
NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept;

namespace ref {
NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept;
}  // namespace ref

}  // namespace kv
