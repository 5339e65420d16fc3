// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/order.h"

namespace kv {

std::string_view Name(Order order) {
  switch (order) {
    case Order::kTokenHeadDim:
      return "token,head,dim";
    case Order::kHeadTokenDim:
      return "head,token,dim";
    case Order::kHeadDimToken:
      return "head,dim,token";
    case Order::kStorage:
      return "storage";
  }
  return "?";
}

}  // namespace kv
