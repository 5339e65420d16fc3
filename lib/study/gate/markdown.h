// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/study/gate/summary.h"

namespace kv::gate {

// summary.md: what failed and how to see it again, then the original's bullets and lines word for
// word, then all rules and the true figures. Reads well as the summary of a CI job.
std::string SummaryMarkdown(const GateResult& result, const OutputNames& outputs);

}  // namespace kv::gate
