// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "formats/registry.h"
#include "lib/core/base/output.h"
#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/study/quantisation/types/cache_type.h"

namespace kv {

// The types of K and V of a layer.
struct LayerTypes {
  const quant::CacheType* k = nullptr;
  const quant::CacheType* v = nullptr;
};

// Writes a cache in types of llama.cpp as a state of one sequence, reads it again and compares what
// came back, byte for byte. Returns how many rows were compared. `version` is the layout's (empty:
// the newest). Throws kUsage for types that llama.cpp has no cache of, and what
// the writer throws.
uint64_t WriteQuantState(const Snapshot& snapshot,
                         const std::function<LayerTypes(uint32_t layer)>& types_of,
                         const quant::StoreOptions& options,
                         const std::optional<ModelGeometry>& geometry, const std::string& version,
                         const std::string& path, const OutputRules& rules, ThreadPool& pool);

}  // namespace kv
