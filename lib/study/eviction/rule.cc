// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/rule.h"

namespace kv::eviction {

SharedRows::SharedRows(const LayerAttention& attention, ThreadPool& pool)
    : whole_(WholeCache(attention)), logits_(attention, whole_, pool) {}

std::vector<KeptKeys> SharedRows::WholeCache(const LayerAttention& attention) {
  std::vector<KeptKeys> whole;
  for (uint32_t h = 0; h < attention.kv_heads(); ++h) {
    whole.emplace_back(attention, h);
    whole.back().AppendUpTo(attention.end_row());
  }
  return whole;
}

}  // namespace kv::eviction
