// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Functions that libkvtool and libkvtool_study both contain.
#include "lib/api/context.h"
#include "lib/core/snapshot/snapshot.h"

// A library must not end its process: a broken invariant ends the call with KV9001. Replaces
// lib/core/base/assertion.cc.
void kv::AssertionFailed(const char* expression, const char* file, int line) {
  throw Error(Finding::kInternal, "{}:{}: broken invariant: {}", file, line, expression);
}

namespace kv::api {

FrameDescription MakeDescription(const kvt_desc* desc) {
  FrameDescription description;
  if (desc == nullptr) return description;
  const kvt_desc given = Whole(desc, "desc->struct_size");
  desc = &given;
  Require(desc->reserved == 0 && desc->reserved2 == 0, "desc->reserved");
  description.dtype = static_cast<DType>(desc->dtype);
  bool known = false;
  for (const DTypeInfo& info : AllDTypes()) known |= info.dtype == description.dtype;
  Require(known, "desc->dtype");
  Require(desc->order == KVT_TOKEN_HEAD_DIM || desc->order == KVT_HEAD_TOKEN_DIM ||
              desc->order == KVT_ORDER_UNKNOWN,
          "desc->order");
  Require(desc->role <= KVT_KV, "desc->role");
  description.order = static_cast<Order>(desc->order);
  description.role = static_cast<FrameRole>(desc->role);
  description.heads = desc->heads;
  description.head_dim = desc->head_dim;
  description.tokens = desc->tokens;
  description.tag = desc->tag;
  std::memcpy(description.context.data(), desc->context, description.context.size());
  return description;
}

KvTensor MakeTensor(const kvt_desc& desc) {
  constexpr uint32_t kMostHeads = 1 << 16, kMostHeadDim = 1 << 16;
  constexpr uint64_t kMostTokens = uint64_t{1} << 28;
  const FrameDescription description = MakeDescription(&desc);
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
