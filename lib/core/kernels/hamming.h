// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// The nearest of many bit signatures.
namespace kv {

struct NearestSignature {
  uint32_t distance = 0;  // bits that differ
  uint32_t age = 0;       // how far before the end it lies: 1 is the last
};

// Of `count` > 0 signatures of `words` 64-bit words each, word w of signature i at
// signatures[w * stride + i], the one with the fewest bits other than `query`'s; of several the
// last.
NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept;

namespace ref {
NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept;
}  // namespace ref

}  // namespace kv
