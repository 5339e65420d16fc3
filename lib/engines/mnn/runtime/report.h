// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/engines/mnn/runtime/replay.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv::mnn::runtime {

// The result of replay-lossless. `detail` adds the bytes of every step; without `timing` there is
// no speed, and RemoveTimes removes all other times from the document.
struct Report {
  const ReplayResult& result;
  bool detail = false;
  bool timing = true;
};
const Fields<Report>& ReportFields();
// Returns the fields of an event; events are in the order of time.
const Fields<Event>& EventFields();
void RemoveTimes(Value& document);

// Returns the report as a self-contained HTML page.
report::Page ReportPage(const std::string& name, const ReplayResult& result);

// Sums over the layers, which several outputs show.
struct Totals {
  uint64_t held_tokens = 0, cold_tokens = 0;  // counted once in each layer
};
Totals TotalsOf(const ReplayResult& result);

// Returns why nothing was encoded, naming the parameter; "" if something was.
std::string WhyNothing(const ReplayResult& result);

}  // namespace kv::mnn::runtime
