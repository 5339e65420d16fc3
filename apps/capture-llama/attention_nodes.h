// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ggml.h"

// Finds attention in the engine's graphs by what nodes compute, because names differ from release
// to release. Only the names of the cache tensors ("cache_k_l7") are used, for a layer's number.
namespace kv::capture {

// Computes scores before the softmax: FLASH_ATTN_EXT, or MUL_MAT of the cache's keys with the
// queries.
struct ScoreNode {
  int32_t layer = 0;
  bool flash = false;
  const ggml_tensor* queries = nullptr;  // [dim][rows][heads], rotated
  int64_t kv_heads = 0, streams = 0;
};
std::optional<ScoreNode> FindScores(const ggml_tensor* node);

// Turns scores into probabilities: FLASH_ATTN_EXT or SOFT_MAX. The scores are softcap * tanh(q.k *
// scale / softcap), or q.k * scale if softcap is 0.
struct SoftmaxNode {
  int32_t layer = 0;
  bool flash = false;
  const ggml_tensor* mask = nullptr;
  double scale = 1, softcap = 0;
  bool biased = false;     // has a bias by position (ALiBi), or one from a table
  bool has_sinks = false;  // has learned sinks, which only the softmax's denominator counts
};
std::optional<SoftmaxNode> FindSoftmax(const ggml_tensor* node);

// The last product: FLASH_ATTN_EXT, or MUL_MAT of the cache's values with the probabilities.
struct OutputNode {
  int32_t layer = 0;
  bool flash = false;  // true: [dim][heads][rows], false: [dim][rows][heads]
};
std::optional<OutputNode> FindOutput(const ggml_tensor* node);

// Returns true for a softmax's last operand if it is not the product itself (softcaps).
bool IsCappedScores(const ggml_tensor* node, int32_t* layer);

// The rotary embedding, as applied by the node that made these queries.
struct RotaryNode {
  int32_t dims = 0, mode = 0, original_context = 0;
  float base = 0, frequency_scale = 1, extrapolation = 0, attention = 1, beta_fast = 0,
        beta_slow = 0;
  const ggml_tensor* factors = nullptr;  // divisors of the frequencies
};
std::optional<RotaryNode> FindRotary(const ggml_tensor* queries);

// Returns the window of a mask: each row sees the positions [first, row], first = row + 1 - window.
// Throws Failure(kUnsupported) if cells are not in the order of positions. Returns 0 if every row
// sees all positions before it. Rows are positions from `begin` on.
int64_t MeasureWindow(const ggml_tensor* mask, int32_t begin, int32_t count);

}  // namespace kv::capture
