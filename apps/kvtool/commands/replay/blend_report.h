// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "lib/core/base/file.h"
#include "lib/engines/cacheblend/report.h"

namespace kv {

// What replay-blend prints.
void PrintBlend(Console& console, const std::string& path, const blend::CachePair& caches,
                const blend::Result& result, const blend::ReportExtras& extras);

// One-dimensional .npy of i64.
void WriteIndices(const std::vector<uint64_t>& indices, Sink& sink);

}  // namespace kv
