// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Shows the analysis of a cache: document fields, table and page.
#pragma once

#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/analysis/analysis.h"

namespace kv::analysis {

// Returns the fields of analyze's document that describe the whole cache.
const Fields<Analysis>& AnalysisFields();
// Returns a table with a row per tensor; `level` names the level of TensorAnalysis::own.
TextTable LayersTable(const Analysis& analysis, const std::string& level);
// Adds charts by layer, a table and the findings to a page. `level` names the level of
// TensorAnalysis::own.
void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page);

}  // namespace kv::analysis
