// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/progress.h"
#include "lib/engines/mnn/runtime/range_codec.h"
#include "lib/study/gate/result.h"
#include "lib/study/gate/subject.h"

namespace kv::mnn {

// Replays a case of the runtime suite, one row per prompt length, H2O and the lossless path in the
// engine's order of a call, and measures every figure that a replay can know. Judges no rule.
// Ranges are coded by the engine's codec, or by `codec` if given: tests give one that fails.
gate::CaseResult ReplayCase(const gate::CaseSpec& spec, const gate::Subject& subject,
                            Progress* progress = nullptr,
                            const runtime::RangeCodec* codec = nullptr);

}  // namespace kv::mnn
