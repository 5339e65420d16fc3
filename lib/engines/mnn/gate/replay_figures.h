// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/engines/mnn/gate/attention_cost.h"
#include "lib/engines/mnn/runtime/replay.h"
#include "lib/study/gate/result.h"

namespace kv::mnn {

struct ReplayedRow {
  runtime::ReplayResult replay;
  AttentionCost attention;
};

// Sets every figure of a case but the offline estimate. The original's figures take the maximum
// over the rows, whatever that means for them; the true ones take the worst row.
// `result.spec.params` must be the parameters that the engine computed with.
void MeasureRows(const std::vector<ReplayedRow>& rows, bool deterministic,
                 gate::CaseResult& result);

}  // namespace kv::mnn
