// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/engines/mnn/runtime/replay.h"

namespace kv::mnn::runtime {

using Json = nlohmann::ordered_json;

// The body of kvtool.replay-lossless/1 after its header. Bytes of every step are in it only with
// `detail`; times, and what depends on them, only with `timing`.
struct ReportOptions {
  bool detail = false;
  bool timing = true;
};
Json ReportJson(const ReplayResult& result, const ReportOptions& options);

// One document per event, in the order of time.
void ForEachEvent(const ReplayResult& result, bool timing,
                  const std::function<void(const Json&)>& emit);

// The self-contained page.
std::string ReportPage(const std::string& name, const ReplayResult& result,
                       const std::string& footer);

// Sums over the layers that several outputs show.
struct Totals {
  uint64_t held_tokens = 0, cold_tokens = 0;  // rows: tokens times layers
  uint64_t full_bytes = 0;
};
Totals TotalsOf(const ReplayResult& result);

// Why nothing was encoded, naming the parameter; empty if something was.
std::string WhyNothing(const ReplayResult& result);

}  // namespace kv::mnn::runtime
