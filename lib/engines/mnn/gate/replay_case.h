// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/progress.h"
#include "lib/engines/mnn/runtime/workers.h"
#include "lib/study/gate/measure.h"

namespace kv::mnn {

// Replays a case of the runtime suite and measures every figure that a replay can provide. It
// replays one row per prompt length, with H2O and the lossless path in the order of the engine's
// calls, and judges no rule. `codec` replaces the engine's codec; tests pass one that fails.
gate::CaseResult ReplayCase(const gate::CaseSpec& spec, const gate::Subject& subject,
                            Progress* progress = nullptr,
                            const runtime::RangeCodec* codec = nullptr);

}  // namespace kv::mnn
