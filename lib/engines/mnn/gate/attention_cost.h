// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/engines/mnn/runtime/replay.h"
#include "lib/study/eviction/quality.h"
#include "lib/study/gate/subject.h"

namespace kv::mnn {

// What a row's evictions cost in attention against the full cache.
struct AttentionCost {
  std::vector<eviction::LayerQuality> layers;  // of the traced layers
  std::optional<AttentionSummary> summary;
  std::string missing;  // why there is none
};

// Measures the plans that the row's cache was really compacted by.
AttentionCost MeasureAttention(const runtime::ReplayResult& row, const gate::Subject& subject);

}  // namespace kv::mnn
