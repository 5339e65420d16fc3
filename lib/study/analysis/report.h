// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lib/report/html.h"
#include "lib/study/analysis/analysis.h"

namespace kv::analysis {

// Returns {"summary", "layers", "findings"}: the part of kvtool.analyze/1 about the cache itself.
nlohmann::ordered_json AnalysisJson(const Analysis& analysis);
// Adds what a page shows of a cache: charts by layer, a table, findings. `level` is that of
// TensorAnalysis::own. In page.cc.
void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page);

}  // namespace kv::analysis
