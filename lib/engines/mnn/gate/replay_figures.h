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

// Every figure of a case but the offline estimate, from its rows: the original's, which take the
// maximum of the rows whatever that means, and the true ones, which take the worst.
// `result.spec.params` must be the effective ones.
void MeasureRows(const std::vector<ReplayedRow>& rows, bool deterministic,
                 gate::CaseResult& result);

}  // namespace kv::mnn
