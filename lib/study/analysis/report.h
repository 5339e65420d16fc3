// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/analysis/analysis.h"

namespace kv::analysis {

// The part of the document of analyze about the cache itself.
const Fields<Analysis>& AnalysisFields();
// Adds what a page shows of a cache: charts by layer, a table, findings. `level` is that of
// TensorAnalysis::own. In page.cc.
void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page);

}  // namespace kv::analysis
