// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/engines/mnn/runtime/replay.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv::mnn::runtime {

// The result of replay-lossless. `detail` adds the bytes of every step;
// `timing` adds times and all that depends on them.
struct Report {
  const ReplayResult& result;
  bool detail = false;
  bool timing = true;
};
const Fields<Report>& ReportFields();

// A line of the events, which are in the order of time.
struct EventLine {
  const Event& event;
  bool timing = true;
};
const Fields<EventLine>& EventLineFields();

// The report as a self-contained HTML page. In page.cc.
report::Page ReportPage(const std::string& name, const ReplayResult& result);

// Sums over the layers, which several outputs show.
struct Totals {
  uint64_t held_tokens = 0, cold_tokens = 0;  // counted once in each layer
  uint64_t full_bytes = 0;
};
Totals TotalsOf(const ReplayResult& result);

// Says why nothing was encoded and names the parameter; empty if something was.
std::string WhyNothing(const ReplayResult& result);

}  // namespace kv::mnn::runtime
