// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/parallel.h"
#include "lib/engines/cacheblend/replay.h"

namespace kv::blend {

// Builds the cache that blending leaves behind: rows of the full run up to the check layer and
// wherever tokens were recomputed, and the chunks' rows elsewhere. All keys are rotated to the
// prompt's positions. Values have the full run's types, so recomputed rows keep their bits; block
// types become f32. The whole cache is held in memory.
Snapshot BlendedCache(const CachePair& caches, const Result& result, ThreadPool& pool);

}  // namespace kv::blend
