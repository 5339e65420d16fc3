// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by replay_case.cc, replay_figures.cc

#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/progress.h"
#include "lib/engines/mnn/runtime/replay.h"
#include "lib/engines/mnn/runtime/runtime.h"
#include "lib/study/eviction/quality.h"
#include "lib/study/gate/measure.h"
#include "lib/study/gate/result.h"

namespace kv::mnn {

// Replays a case of the runtime suite and measures every figure that a replay can provide. It
// replays one row per prompt length, with H2O and the lossless path in the order of the engine's
// calls, and judges no rule. `codec` replaces the engine's codec; tests pass one that fails.
gate::CaseResult ReplayCase(const gate::CaseSpec& spec, const gate::Subject& subject,
                            Progress* progress = nullptr,
                            const runtime::RangeCodec* codec = nullptr);

// The attention error that a row's evictions cause, compared with the full cache.
struct AttentionCost {
  std::vector<eviction::LayerQuality> layers;  // results of the traced layers
  // over all queries; over those that lost a key
  std::optional<AttentionSummary> summary, evicting;
  std::string missing;  // why nothing could be measured; empty otherwise
};

struct ReplayedRow {
  runtime::ReplayResult replay;
  AttentionCost attention;
};

// Sets every figure of a case except the offline estimate. The figures of MNN's gate take the
// maximum over the rows, whether large values are good or bad; the true ones take the worst row.
// `result.spec.params` must be the parameters that the engine computed with.
void MeasureRows(const std::vector<ReplayedRow>& rows, bool deterministic,
                 gate::CaseResult& result);

}  // namespace kv::mnn
