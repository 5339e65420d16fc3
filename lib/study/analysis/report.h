// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/analysis/analysis.h"

namespace kv::analysis {

// The part of the document of analyze about the cache itself.
const Fields<Analysis>& AnalysisFields();
// A row for each tensor; `level` is that of TensorAnalysis::own.
TextTable LayersTable(const Analysis& analysis, const std::string& level);
// Adds what a page shows of a cache: charts by layer, a table, findings. `level` is that of
// TensorAnalysis::own.
void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page);

}  // namespace kv::analysis
