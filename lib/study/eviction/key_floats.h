// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/study/attention/layer_attention.h"

namespace kv::eviction {

// Returns keys as floats, [key][dim].
std::vector<float> FloatKeys(const LayerAttention& attention, std::span<const uint32_t> positions,
                             uint32_t kv_head);

double Norm(const float* row, size_t dim);

}  // namespace kv::eviction
