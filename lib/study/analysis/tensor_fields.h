// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/fields/fields.h"
#include "lib/study/analysis/tensor_analysis.h"

namespace kv::analysis {

const Fields<Coded>& CodedFields();
// One tensor in the document of analyze, and the same as JSON on one line.
const Fields<TensorAnalysis>& TensorAnalysisFields();
std::string TensorJsonText(const TensorAnalysis& tensor);

}  // namespace kv::analysis
