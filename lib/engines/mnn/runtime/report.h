// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/engines/mnn/runtime/replay.h"
#include "lib/report/html.h"

namespace kv::mnn::runtime {

using Json = nlohmann::ordered_json;

// The body of kvtool.replay-lossless/1 after its header. `detail` adds the bytes of every step;
// `timing` adds times and all that depends on them.
struct ReportOptions {
  bool detail = false;
  bool timing = true;
};
Json ReportJson(const ReplayResult& result, const ReportOptions& options);

// One document per event, in the order of time.
void ForEachEvent(const ReplayResult& result, bool timing,
                  const std::function<void(const Json&)>& emit);

// The report as a self-contained HTML page. In page.cc.
report::Page ReportPage(const std::string& name, const ReplayResult& result,
                        const std::string& footer);

// Sums over the layers, which several outputs show.
struct Totals {
  uint64_t held_tokens = 0, cold_tokens = 0;  // counted once in each layer
  uint64_t full_bytes = 0;
};
Totals TotalsOf(const ReplayResult& result);

// Says why nothing was encoded and names the parameter; empty if something was.
std::string WhyNothing(const ReplayResult& result);

}  // namespace kv::mnn::runtime
