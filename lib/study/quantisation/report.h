// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by report.cc, page.cc

#include <nlohmann/json.hpp>
#include <string>

#include "lib/report/html.h"
#include "lib/study/quantisation/replay.h"

namespace kv::quantisation {

// "q8_0"; the first pair's type for a side that is kept as it is.
std::string_view TypeName(const ReplayRequest& request, const TypePair& pair, bool is_key);
// "-ctk q8_0 -ctv q5_1 -fa on"; empty where llama.cpp has no such cache.
std::string EngineFlags(const ReplayRequest& request, const TypePair& pair);

// What the replay found, beside the document's header and inputs: kvtool.quant/1. With `detail`,
// figures of every head.
nlohmann::ordered_json ReportJson(const Snapshot& snapshot, const AttentionTrace& trace,
                                  const ReplayRequest& request, const ReplayResult& result,
                                  bool detail);
nlohmann::ordered_json OutcomeJson(const Outcome& outcome, uint64_t tokens);
// A self-contained page.
report::Page ReportPage(const Snapshot& snapshot, const AttentionTrace& trace,
                        const ReplayRequest& request, const ReplayResult& result,
                        const std::vector<std::string>& notes, const std::string& footer);

}  // namespace kv::quantisation
