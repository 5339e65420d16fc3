// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Caches up to this size are read whole; of larger ones a sample of about this size is read.
inline constexpr uint64_t kCheckupBytes = uint64_t{8} << 20;

struct CheckupPlace {
  uint32_t layer = 0;
  bool is_value = false;
};

// Result of a quick check of a cache's values.
struct Checkup {
  uint64_t bytes = 0;       // bytes of K and V
  uint64_t seen_bytes = 0;  // bytes of the values read
  uint64_t layers = 0, seen_layers = 0;
  uint64_t values = 0, nans = 0, infinities = 0;         // among the values read
  std::vector<CheckupPlace> not_finite;                  // tensors that have any such value
  std::vector<CheckupPlace> zeros;                       // tensors whose values are all zero
  std::vector<std::pair<uint32_t, uint32_t>> same_keys;  // layers whose K is equal, and not zero
  uint64_t coded_bytes = 0;                              // compressed size of the values read

  bool whole() const { return seen_bytes == bytes; }
  bool sound() const { return not_finite.empty() && zeros.empty() && same_keys.empty(); }
  double ratio() const {
    return coded_bytes == 0 ? 1
                            : static_cast<double>(seen_bytes) / static_cast<double>(coded_bytes);
  }
};

// Reads a bounded part of the values, spread over layers and tokens. The result depends on the
// snapshot only. Tensors without bytes count as not read.
Checkup CheckUp(const Snapshot& snapshot, Effort level, ThreadPool& pool);

}  // namespace kv
