// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/study/analysis/tensor_analysis.h"

namespace kv::analysis {

// Returns {"raw_bytes", "coded_bytes", "ratio", "removed_fraction"}.
nlohmann::ordered_json CodedJson(const Coded& coded);
// One tensor of kvtool.analyze/1, and the same as text on one line.
nlohmann::ordered_json TensorJson(const TensorAnalysis& tensor);
std::string TensorJsonText(const TensorAnalysis& tensor);

}  // namespace kv::analysis
