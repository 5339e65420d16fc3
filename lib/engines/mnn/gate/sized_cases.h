// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/engine.h"

namespace kv::mnn {

// Two cases whose parameters fit data of this size: everything compressed and nothing evicted, and,
// where attention was recorded, half of it evicted and nothing compressed. Both follow the design
// rather than the engine's code, so that they speak of the data and not of an engine.
std::vector<gate::SizedCase> SizedCases(const gate::DataSize& size);

}  // namespace kv::mnn
