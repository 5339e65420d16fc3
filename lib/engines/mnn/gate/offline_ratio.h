// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/gate/replay_case.h"

namespace kv::mnn {

inline constexpr std::string_view kOfflineRatio = "lossless_selected_value";

// kOfflineRatio as the original makes it: its offline estimate (online-sim: grouped
// chunks of 192 tokens, framing 8) over the front layers of the cache.
void MeasureOfflineRatio(const gate::Subject& subject, gate::Measurements& measured);

}  // namespace kv::mnn
