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

// Caches up to this size are looked at whole, of larger ones a sample of about as much.
inline constexpr uint64_t kCheckupBytes = uint64_t{8} << 20;

struct CheckupPlace {
  uint32_t layer = 0;
  bool is_value = false;
};

// What a quick look at the values of a cache finds.
struct Checkup {
  uint64_t bytes = 0;       // of K and V
  uint64_t seen_bytes = 0;  // looked at
  uint64_t layers = 0, seen_layers = 0;
  uint64_t values = 0, nans = 0, infinities = 0;         // among those looked at
  std::vector<CheckupPlace> not_finite;                  // tensors that have any
  std::vector<CheckupPlace> zeros;                       // tensors without another value
  std::vector<std::pair<uint32_t, uint32_t>> same_keys;  // layers whose K is equal, and not zero
  uint64_t coded_bytes = 0;                              // what is looked at, compressed

  bool whole() const { return seen_bytes == bytes; }
  bool sound() const { return not_finite.empty() && zeros.empty() && same_keys.empty(); }
  double ratio() const {
    return coded_bytes == 0 ? 1
                            : static_cast<double>(seen_bytes) / static_cast<double>(coded_bytes);
  }
};

// Looks at a bounded part of the values, spread over layers and tokens. The result depends on the
// snapshot alone. Tensors without bytes count as not seen.
Checkup CheckUp(const Snapshot& snapshot, Effort level, ThreadPool& pool);

}  // namespace kv
