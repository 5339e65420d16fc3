// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/engines/cacheblend/deviation.h"

namespace kv::blend {

// Checks by layer 0 whether the inputs belong together. Its V depends on the token alone and its K
// on the token and its position, so both must equal the full run's up to rounding. Returns a
// sentence for each tensor that deviates more; for K the sentence names the key state (KeyState)
// that would fit, if one of the usual ones does. Returns nothing if the snapshots do not begin at
// layer 0.
std::vector<std::string> DiagnoseFirstLayer(const CachePair& caches, const LayerDeviation& first);

}  // namespace kv::blend
