// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/engines/cacheblend/gates.h"
#include "lib/engines/cacheblend/replay.h"

namespace kv::blend {

// What a report says beside the result itself.
struct ReportExtras {
  const AttentionTrace* trace = nullptr;
  std::optional<Controller> controller;
  std::vector<GateResult> gates;
  std::string indices_file;  // where indices went instead of the document
  bool detail = false;       // the deviation of every token

  bool pass() const;
};

// The body of kvtool.blend/1 after its header and inputs.
nlohmann::ordered_json ReportJson(const CachePair& caches, const Result& result,
                                  const ReportExtras& extras);

// The self-contained page.
std::string ReportPage(const CachePair& caches, const Result& result, const ReportExtras& extras,
                       const std::string& footer);

}  // namespace kv::blend
