// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/engines/cacheblend/replay.h"

namespace kv::blend {

// The cache that blending leaves behind: rows of the full run up to the check layer and wherever
// tokens were recomputed, the chunks' rows elsewhere, keys at the prompt's positions. Values have
// the full run's types (f32 where those are block types), so recomputed rows keep their bits. Held
// in memory as a whole.
Snapshot BlendedCache(const CachePair& caches, const Result& result, ThreadPool& pool);

}  // namespace kv::blend
