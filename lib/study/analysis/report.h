// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lib/study/analysis/analysis.h"

namespace kv::analysis {

// Returns {"summary", "layers", "findings"}: the part of kvtool.analyze/1 about the cache itself.
nlohmann::ordered_json AnalysisJson(const Analysis& analysis);

}  // namespace kv::analysis
