// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/study/gate/summary.h"

namespace kv::gate {

// Writes summary.md: what failed and how to reproduce it, then the bullets and lines of the
// engine's own summary.md word for word, then all rules and the true figures. Where no case is of
// an engine's suite, the engine's lines are left out. It can serve as the summary of a CI job.
std::string SummaryMarkdown(const GateResult& result, const OutputNames& outputs);

}  // namespace kv::gate
