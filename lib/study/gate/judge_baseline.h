// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/judge.h"

namespace kv::gate {

// Adds rules on how far this case's figures may have moved from those of the baselines that `gate`
// has. A figure that the older run measured and this one does not fails, asked for by a rule on
// its movement or by one of the case's own; times are compared only where asked.
void AddBaselineRules(const JudgeOptions& options, const GateResult& gate, CaseResult& result);

// Checks whether the baselines can say anything about this run at all, and collects their problems.
void JudgeBaselines(const JudgeOptions& options, GateResult& gate);

}  // namespace kv::gate
