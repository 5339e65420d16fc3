// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Finds attention in the engine's graphs by the shape of the computation, and reads masks.
#include "apps/capture-llama/attention_nodes.h"

#include <charconv>
#include <cmath>
#include <cstring>

#include "apps/capture-llama/failure.h"
#include "ggml-backend.h"

namespace kv::capture {
namespace {

// largest number of nodes between an operand and the tensor it is a view of
constexpr int kFarthest = 12;

const ggml_tensor* Behind(const ggml_tensor* tensor) {
  return tensor->view_src != nullptr ? tensor->view_src : tensor->src[0];
}

// Returns the layer whose cache this operand views or casts; -1 if there is none.
int32_t FindCacheLayer(const ggml_tensor* tensor, const char* name) {
  for (int i = 0; tensor != nullptr && i < kFarthest; ++i, tensor = Behind(tensor)) {
    const char* const at = std::strstr(tensor->name, name);
    if (at == nullptr) continue;
    const char* const digits = at + std::strlen(name);
    int32_t layer = 0;
    std::from_chars(digits, tensor->name + sizeof tensor->name, layer);
    return layer;
  }
  return -1;
}

float Parameter(const ggml_tensor* node, int index) {
  float value;
  std::memcpy(&value, &node->op_params[index], sizeof value);
  return value;
}

bool IsTanh(const ggml_tensor* node) {
  return node->op == GGML_OP_UNARY && ggml_get_unary_op(node) == GGML_UNARY_OP_TANH;
}

// The operations between the product of keys and queries and the softmax.
struct Chain {
  int32_t layer = -1;
  double before = 1, after = 1;  // factors of the logits before and after a tanh
  bool capped = false, biased = false;
};

Chain ChainBehind(const ggml_tensor* scores) {
  Chain chain;
  for (int i = 0; scores != nullptr && i < kFarthest; ++i, scores = scores->src[0]) {
    if (const std::optional<ScoreNode> product = FindScores(scores)) {
      chain.layer = product->layer;
      break;
    }
    if (scores->op == GGML_OP_SCALE) {
      (chain.capped ? chain.before : chain.after) *= Parameter(scores, 0);
    } else if (IsTanh(scores)) {
      chain.capped = true;
    } else if (scores->op == GGML_OP_ADD) {
      chain.biased = true;
    } else {
      break;
    }
  }
  return chain;
}

}  // namespace

std::optional<ScoreNode> FindScores(const ggml_tensor* node) {
  ScoreNode found;
  found.flash = node->op == GGML_OP_FLASH_ATTN_EXT;
  if (!found.flash && node->op != GGML_OP_MUL_MAT) return std::nullopt;
  const ggml_tensor* const keys = node->src[found.flash ? 1 : 0];
  found.layer = FindCacheLayer(keys, "cache_k_l");
  if (found.layer < 0) return std::nullopt;
  found.queries = node->src[found.flash ? 0 : 1];
  found.kv_heads = keys->ne[2];
  found.streams = keys->ne[3];
  return found;
}

std::optional<SoftmaxNode> FindSoftmax(const ggml_tensor* node) {
  SoftmaxNode found;
  found.biased = (node->op == GGML_OP_FLASH_ATTN_EXT || node->op == GGML_OP_SOFT_MAX) &&
                 Parameter(node, 1) != 0;
  if (node->op == GGML_OP_FLASH_ATTN_EXT) {
    found.flash = true;
    found.layer = FindCacheLayer(node->src[1], "cache_k_l");
    if (found.layer < 0) return std::nullopt;
    found.mask = node->src[3];
    found.scale = Parameter(node, 0);
    found.softcap = Parameter(node, 2);
    found.has_sinks = node->src[4] != nullptr;
    return found;
  }
  if (node->op != GGML_OP_SOFT_MAX) return std::nullopt;
  const Chain chain = ChainBehind(node->src[0]);
  if (chain.layer < 0) return std::nullopt;
  found.layer = chain.layer;
  found.mask = node->src[1];
  const double last = chain.after * Parameter(node, 0);
  found.softcap = chain.capped ? last : 0;
  // Rounding to float makes the softcap and its inverse, both rounded to float, multiply to 1.
  found.scale = static_cast<float>(chain.capped ? chain.before * last : last);
  found.biased |= chain.biased;
  found.has_sinks = node->src[2] != nullptr;
  return found;
}

std::optional<OutputNode> FindOutput(const ggml_tensor* node) {
  if (node->op == GGML_OP_FLASH_ATTN_EXT) {
    const int32_t layer = FindCacheLayer(node->src[1], "cache_k_l");
    if (layer >= 0) return OutputNode{layer, true};
  }
  if (node->op != GGML_OP_MUL_MAT || node->src[1] == nullptr) return std::nullopt;
  const std::optional<SoftmaxNode> softmax = FindSoftmax(node->src[1]);
  if (!softmax || softmax->flash) return std::nullopt;
  return OutputNode{softmax->layer, false};
}

bool IsCappedScores(const ggml_tensor* node, int32_t* layer) {
  if (node->op != GGML_OP_SCALE || node->src[0] == nullptr || !IsTanh(node->src[0])) return false;
  *layer = ChainBehind(node).layer;
  return *layer >= 0;
}

std::optional<RotaryNode> FindRotary(const ggml_tensor* queries) {
  const ggml_tensor* at = queries;
  for (int i = 0; at != nullptr && i < kFarthest && at->op != GGML_OP_ROPE; ++i) at = at->src[0];
  if (at == nullptr || at->op != GGML_OP_ROPE) return std::nullopt;
  RotaryNode found;
  found.dims = at->op_params[1];
  found.mode = at->op_params[2];
  found.original_context = at->op_params[4];
  found.base = Parameter(at, 5);
  found.frequency_scale = Parameter(at, 6);
  found.extrapolation = Parameter(at, 7);
  found.attention = Parameter(at, 8);
  found.beta_fast = Parameter(at, 9);
  found.beta_slow = Parameter(at, 10);
  found.factors = at->src[2];
  return found;
}

// Returns true if the mask has a row for each of `count` tokens of one sequence.
static bool IsForSequence(const ggml_tensor* mask, int32_t begin, int32_t count) {
  return mask != nullptr && (mask->type == GGML_TYPE_F32 || mask->type == GGML_TYPE_F16) &&
         mask->ne[1] >= count && mask->ne[0] >= begin + count && mask->ne[2] == 1 &&
         mask->ne[3] == 1;
}

int64_t MeasureWindow(const ggml_tensor* mask, int32_t begin, int32_t count) {
  if (!IsForSequence(mask, begin, count)) {
    throw Failure(kUnsupported, "the attention mask is not that of a single sequence");
  }
  const size_t value_bytes = ggml_type_size(mask->type);
  std::vector<uint8_t> row(static_cast<size_t>(mask->ne[0]) * value_bytes);
  const auto visible = [&](int64_t cell) {
    const uint8_t* const value = row.data() + static_cast<size_t>(cell) * value_bytes;
    for (size_t i = 0; i < value_bytes; ++i) {
      if (value[i] != 0) return false;  // -inf: hidden. A bias is refused elsewhere.
    }
    return true;
  };
  int64_t window = 0;
  for (int32_t i = 0; i < count; ++i) {
    ggml_backend_tensor_get(mask, row.data(), static_cast<size_t>(i) * mask->nb[1], row.size());
    const int64_t position = begin + i;
    int64_t first = 0;
    while (first < position && !visible(first)) ++first;
    for (int64_t cell = first; cell < mask->ne[0]; ++cell) {
      if (visible(cell) != (cell <= position)) {
        throw Failure(kUnsupported, "the cache does not hold positions in order");
      }
    }
    const int64_t seen = position + 1 - first;
    if (window != 0 && (first == 0 || seen != window)) {
      throw Failure(kUnsupported, "attention has a mask that is not a sliding window");
    }
    if (first > 0) window = seen;
  }
  return window;
}

}  // namespace kv::capture
