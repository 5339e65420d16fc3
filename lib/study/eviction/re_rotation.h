// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/study/attention/attention.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/timeline.h"

namespace kv::eviction {

// StreamingLLM counts positions within the cache: the distance of a kept key from the query is the
// number of kept keys between them. In effect it turns the key on by the number of evicted tokens
// after it. Returns what the rows of one head at `positions` lose by a plan with `turned_by`,
// compared with the full cache as it was. `k` and `v` are all keys and values of the head as
// floats, [token][dim]; `v` is empty without values. `gradients` have a row per position.
AttentionRows CompareReRotated(const LayerAttention& attention, const LayerPlan& plan,
                               uint32_t head, std::span<const uint64_t> positions,
                               std::span<const float> k, std::span<const float> v,
                               OutputGradients gradients = {});

}  // namespace kv::eviction
