// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/engines/mnn/runtime/replay.h"
#include "lib/study/eviction/quality.h"
#include "lib/study/gate/subject.h"

namespace kv::mnn {

// The attention error that a row's evictions cause, compared with the full cache.
struct AttentionCost {
  std::vector<eviction::LayerQuality> layers;         // of the traced layers
  std::optional<AttentionSummary> summary, evicting;  // of all queries; of those that lost a key
  std::string missing;  // why nothing could be measured; empty otherwise
};

// Measures the cost of the plans by which the row's cache was really compacted.
AttentionCost MeasureAttention(const runtime::ReplayResult& row, const gate::Subject& subject);

}  // namespace kv::mnn
