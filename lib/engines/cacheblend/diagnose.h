// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/engines/cacheblend/deviation.h"

namespace kv::blend {

// Layer 0 tells whether the inputs belong together: its V depends on the token alone, its K on the
// token and its position, so both must be the full run's but for rounding. What deviates more is
// said, for K with the reading of the dump that would fit, if one of the usual ones does. Nothing
// where the snapshots do not begin at layer 0.
std::vector<std::string> DiagnoseFirstLayer(const CachePair& caches, const LayerDeviation& first);

}  // namespace kv::blend
