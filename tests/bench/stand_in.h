// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"

// Synthetic caches for reproducible figures: a seed gives the same bytes on every machine, because
// only IEEE additions and multiplications make them.
namespace kv::bench {

struct StandInShape {
  uint64_t tokens = 4096;
  uint32_t heads = 8, head_dim = 128;

  uint64_t values() const { return tokens * heads * head_dim; }
};

// Returns K as [token][head][dim]: every channel has an offset and a scale of its own, a few are
// outliers, neighbouring tokens resemble each other (AR(1)), then RoPE.
std::vector<float> StandInK(const StandInShape& shape, uint64_t seed);
// Returns V: near-gaussian, scaled per channel and per token.
std::vector<float> StandInV(const StandInShape& shape, uint64_t seed);
// Returns V of a first layer: rows are drawn from a vocabulary, so whole rows repeat.
std::vector<float> StandInRepeatingV(const StandInShape& shape, uint64_t seed, uint32_t vocabulary);

// Rounds the values to f16, bf16 or f32.
Bytes Store(std::span<const float> values, DType dtype);

}  // namespace kv::bench
