// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/api/context.h"

namespace kv::api {

FrameDescription DescriptionOf(const kvt_desc* desc) {
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

}  // namespace kv::api
