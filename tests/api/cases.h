// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "lib/api/kvtool.h"

// Pages and contexts for programs that use kvtool.h alone.
namespace api_cases {

using Buffer = std::vector<uint8_t>;

// Returns bf16 channels with similar neighbouring rows.
inline Buffer Page(size_t tokens, size_t channels, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> state(channels);
  Buffer page(2 * tokens * channels);
  for (size_t i = 0; i < tokens * channels; ++i) {
    float& x = state[i % channels];
    x = 0.9f * x + normal(random);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const auto half = static_cast<uint16_t>(bits >> 16);
    std::memcpy(&page[2 * i], &half, sizeof half);
  }
  return page;
}

inline kvt_desc Desc(uint64_t tokens, uint32_t heads, uint32_t dim) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_BF16;
  desc.role = KVT_K;
  desc.heads = heads;
  desc.head_dim = dim;
  desc.tokens = tokens;
  kvt_hash128("model 3 0:16", 12, desc.context);
  return desc;
}

struct Context {
  explicit Context(kvt_pool* pool = nullptr, uint32_t level = 0, uint64_t limit = 0) {
    const kvt_params params = {sizeof params, level, limit, pool};
    REQUIRE(kvt_ctx_create(&params, &ctx) == 0);
  }
  ~Context() { kvt_ctx_free(ctx); }
  operator kvt_ctx*() const { return ctx; }
  kvt_ctx* ctx = nullptr;
};

}  // namespace api_cases
