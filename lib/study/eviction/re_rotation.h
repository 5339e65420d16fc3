// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/study/attention/attention.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/timeline.h"

namespace kv::eviction {

// StreamingLLM counts positions within the cache: a kept key stands as far from the query as there
// are keys between them, evicted ones left out. That is the key turned on by the number of evicted
// tokens after it. What one head's rows at `positions` lose then by a plan with `turned_by`,
// against the full cache as it was; `k` and `v`: all keys and values of the head as floats,
// [token][dim], `v` empty without values.
AttentionRows CompareReRotated(const LayerAttention& attention, const LayerPlan& plan,
                               uint32_t head, std::span<const uint64_t> positions,
                               std::span<const float> k, std::span<const float> v);

}  // namespace kv::eviction
