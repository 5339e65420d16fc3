// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/study/gate/metrics.h"

namespace kv::mnn {

// The figures of MNN's own gate under its keys, with its definitions. "Best" is the maximum over
// the rows, of latencies and fallbacks too.
std::span<const gate::MetricInfo> GateMetrics();

}  // namespace kv::mnn
