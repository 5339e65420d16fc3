// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace kv::gate {

// A summary.json, kvtool's own (kvtool.gate/1) or the one of the engine's suite.
struct Summary {
  std::string file;  // as given
  nlohmann::ordered_json document;
};

// Parses and checks as much as the renderers rely on. Throws kBadText, kBadField, kLimit.
Summary ParseSummary(std::string_view text, std::string_view file);

// The self-contained page of the last summary, with the history of all of them. Every key may be
// absent: the page shows what is there.
std::string SummaryPage(std::span<const Summary> summaries, std::string_view footer);
// One test suite per case, one test per rule.
std::string SummaryJunit(const Summary& summary);

}  // namespace kv::gate
