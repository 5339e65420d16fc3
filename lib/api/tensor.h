// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/api/context.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::api {

// The tensor that a complete description describes: one piece, without bytes. Throws kBadArgument
// for descriptions without a shape, and for sizes that nobody has and whose products would
// overflow.
inline KvTensor TensorOf(const kvt_desc& desc) {
  constexpr uint32_t kMostHeads = 1 << 16, kMostHeadDim = 1 << 16;
  constexpr uint64_t kMostTokens = uint64_t{1} << 28;
  const FrameDescription description = DescriptionOf(&desc);
  KvTensor tensor;
  tensor.dtype = description.dtype;
  tensor.heads = description.heads;
  tensor.head_dim = description.head_dim;
  Require(desc.order == KVT_TOKEN_HEAD_DIM || desc.order == KVT_HEAD_TOKEN_DIM, "desc->order");
  Require(desc.heads > 0 && desc.heads <= kMostHeads && desc.head_dim > 0 &&
              desc.head_dim <= kMostHeadDim &&
              desc.head_dim % Info(tensor.dtype).block_elements == 0,
          "desc->heads, head_dim");
  Require(desc.tokens > 0 && desc.tokens <= kMostTokens, "desc->tokens");
  tensor.pieces.push_back({nullptr, desc.tokens, {}, {}, {}});
  return tensor;
}

}  // namespace kv::api
