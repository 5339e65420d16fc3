// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/engines/mnn/gate/replay_case.h"

namespace kv::mnn {

inline constexpr std::string_view kOfflineRatio = "lossless_selected_value";

// Measures kOfflineRatio as the original does: by its offline estimate over the cache's front
// layers, in grouped chunks of 192 tokens with 8 framing bytes.
void MeasureOfflineRatio(const gate::Subject& subject, gate::Measurements& measured);

}  // namespace kv::mnn
