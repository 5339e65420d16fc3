// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/engines/mnn/runtime/replay.h"
#include "lib/study/eviction/quality.h"
#include "lib/study/gate/result.h"

namespace kv::mnn {

// The attention error that a row's evictions cause, compared with the full cache.
struct AttentionCost {
  std::vector<eviction::LayerQuality> layers;  // of the traced layers
  // over all queries; over those that lost a key
  std::optional<AttentionSummary> summary, evicting;
  std::string missing;  // why nothing could be measured; empty otherwise
};

struct ReplayedRow {
  runtime::ReplayResult replay;
  AttentionCost attention;
};

// Sets every figure of a case except the offline estimate. The original's figures take the maximum
// over the rows, whether large values are good or bad; the true ones take the worst row.
// `result.spec.params` must be the parameters that the engine computed with.
void MeasureRows(const std::vector<ReplayedRow>& rows, bool deterministic,
                 gate::CaseResult& result);

}  // namespace kv::mnn
