// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "lib/engines/mnn/offline/offline.h"
#include "lib/fields/value.h"
#include "lib/study/analysis/analysis.h"

namespace kv {

// Returns the text that `analyze` prints: first what compresses, then layer by layer. `level` is
// that of the second codec.
std::string AnalysisText(const Snapshot& snapshot, const analysis::Analysis& analysis,
                         const std::string& level, const Console& console);
std::string OfflineText(const mnn::offline::Options& options, const mnn::offline::Result& result,
                        const Console& console);
// Returns rows of the distribution report or the packed one, without columns that are always 0.
std::string RowsText(std::string_view title, const std::vector<Value>& rows,
                     const Console& console);

}  // namespace kv
