// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/study/quantisation/replay.h"

// What replay-quant says on the terminal.
namespace kv {

// A line for each pair of types.
void PrintPairs(Console& console, const quantisation::ReplayRequest& request,
                const quantisation::ReplayResult& result);
// One line: what all layers together take and lose.
void PrintOutcome(Console& console, std::string_view what, const quantisation::Outcome& outcome,
                  const quantisation::ReplayResult& result);
// What a reader of the figures has to know.
std::vector<std::string> QuantWarnings(const Snapshot& snapshot,
                                       const quantisation::ReplayRequest& request,
                                       const quantisation::ReplayResult& result);

}  // namespace kv
