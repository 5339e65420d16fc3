// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/study/quantisation/types/cache_type.h"

// Finds how a quantised cache was made from the full one of the same text. The two caches come from
// separate runs, and the engine quantised what it had computed in 32 bits: codes agree nearly
// everywhere in the first layer and drift apart in deeper ones, where the hidden states of the two
// runs differ.
namespace kv::quantisation {

// A way to store K or V.
struct Origin {
  bool rotated = false;
  Q8Rounding rounding = Q8Rounding::kAvx;  // for q8_0 only
  bool searched = false;                   // for iq4_nl only
};

// Number of codes that agree.
struct Agreement {
  uint64_t codes = 0, equal_codes = 0, blocks = 0, equal_blocks = 0;
  uint64_t furthest = 0;  // the largest difference of two codes

  double share() const {
    return codes == 0 ? 1 : static_cast<double>(equal_codes) / static_cast<double>(codes);
  }
  double block_share() const {
    return blocks == 0 ? 1 : static_cast<double>(equal_blocks) / static_cast<double>(blocks);
  }
};

struct Hypothesis {
  Origin origin;
  Agreement first_layer;
};

// Share of equal codes in the first layer that only the right hypothesis reaches.
inline constexpr double kNamedShare = 0.98;

struct SideOrigin {
  DType dtype = DType::kF16;
  std::vector<Hypothesis> tried;  // best first
  std::vector<Agreement> layers;  // agreement of each layer under the best candidate

  bool is_named() const {
    return !tried.empty() && tried.front().first_layer.share() >= kNamedShare;
  }
  // Returns how many of the tried hypotheses agree as well as the best one.
  size_t equally_good() const;
};

// The result of comparing two caches layer by layer. K or V is absent if it is not quantised in
// blocks of llama.cpp. Throws kInconsistent if the caches differ in shape.
struct CacheOrigin {
  std::optional<SideOrigin> k, v;
};
CacheOrigin FindOrigin(const Snapshot& quantised, const Snapshot& full, ThreadPool& pool);

}  // namespace kv::quantisation
