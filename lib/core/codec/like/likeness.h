// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/codec/backends.h"
#include "lib/core/codec/rotation.h"

// Which earlier row each row resembles most. Tokens come back, and what a layer makes of them comes
// back with them: nearly so in the first layers, still visibly in the middle of a model.
namespace kv {

// How much: class q leaves less than kLikenessLimits[q] of the variance of a row; class 0 is for
// rows without a likeness.
constexpr size_t kLikenessClasses = 6;
constexpr std::array<float, kLikenessClasses> kLikenessLimits = {1,    0.003f, 0.02f,
                                                                 0.1f, 0.3f,   0.6f};
constexpr uint32_t kPoorLikeness = 4;  // this class and those after it

struct Likeness {
  uint32_t likeness = 0;  // class
  uint32_t distance = 0;  // in rows; 0 for class 0
};

struct LikenessPlan {
  Rotation rotation;  // that rows are turned by before they are likened
  std::vector<Likeness> likenesses;
};

// u16 distance of partners, u16 turns, u32 each; u32 length of a zstd frame: a plane of classes and
// two of distances.
void WriteLikenesses(const LikenessPlan& plan, CodecScratch& scratch, ByteWriter& out);
// Throws kBadFrame, kBadPayload, kTruncated.
LikenessPlan ReadLikenesses(ByteReader& reader, uint64_t rows, uint64_t columns,
                            CodecScratch& scratch);

// Nothing where few rows resemble earlier ones. `values` are rows x columns half floats; `head_dim`
// is 0 if not known.
std::optional<LikenessPlan> PlanLikenesses(ByteSpan values, bool bfloat, uint64_t rows,
                                           uint64_t columns, uint64_t head_dim);

// One per row of `values`. Rows are compared as they were before rotation, each
// channel by its deviation from its mean: all of them if `thorough`, else the signs of a window.
// The choice is the same on every machine.
std::vector<Likeness> FindLikenesses(ByteSpan values, bool bfloat, uint64_t rows, uint64_t columns,
                                     const Rotation& rotation, bool thorough);

}  // namespace kv
