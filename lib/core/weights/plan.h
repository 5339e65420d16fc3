// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/snapshot/snapshot.h"
#include "lib/core/weights/weights.h"

namespace kv {

// The plan of one compression step on a cache, decided and checked before anything is computed. K
// and V of a layer are cut into an image segment, the first image_len tokens, and a text segment;
// in each, `factor` adjacent tokens of one head become one token, and the remainder stays as it is,
// after the compressed ones of its segment.

// The settings as a caller of the engine gives them.
struct StepSettings {
  uint32_t factor = 0;  // tokens per group; 0 or 1: the weights' own
  uint32_t min_seq_len =
      0;  // fewest groups (not tokens) of a segment that is compressed; 0: the weights' own
  uint64_t image_len = 0;                // tokens of the image prefix; clamped
  std::optional<uint64_t> seq_len = {};  // tokens of the cache to compress; clamped; absent: all
};

enum class RawReason : uint8_t { kNone, kFewGroups, kNoImageWeights };

struct Segment {
  uint64_t begin = 0, tokens = 0;  // in the cache
  uint64_t groups = 0;             // that are compressed; 0: the segment stays raw
  MlpRole k_role = MlpRole::kTextK, v_role = MlpRole::kTextV;
  RawReason raw_reason = RawReason::kNone;

  // Tokens that are copied unchanged, after the groups.
  uint64_t tail(uint32_t factor) const { return tokens - groups * factor; }
  uint64_t new_length(uint32_t factor) const { return groups + tail(factor); }
};

struct StepPlan {
  uint32_t factor = 0;
  uint32_t min_seq_len = 0;
  bool factor_from_weights = false, min_seq_len_from_weights = false;
  uint64_t tokens = 0;     // of the cache, after clamping
  uint64_t image_len = 0;  // after clamping
  Segment image, text;
  uint64_t new_length = 0;
  size_t layers = 0;
  uint64_t bytes_before = 0, bytes_after = 0;  // of K and V of all layers, before: of `tokens`
  uint64_t flop = 0;

  std::array<Segment, 2> segments() const { return {image, text}; }
  // For each token of the result, in order, the tokens that it stands for.
  std::vector<TokenRange> Sources() const;
};

// floor(tokens / factor) groups if there are at least `min_groups`, else none.
uint64_t GroupsOf(uint64_t tokens, uint32_t factor, uint64_t min_groups);
// Length of one segment after the step.
uint64_t CompressedLength(uint64_t tokens, uint32_t factor, uint64_t min_groups);

// Checks everything that could go wrong: layers and their lengths, MLPs and how they chain, the
// factor against shapes, head sizes, dtypes. Throws an Error that names the misfit; after this the
// step cannot fail.
StepPlan PlanStep(const Snapshot& snapshot, const CompressorWeights& weights,
                  const StepSettings& settings);

}  // namespace kv
