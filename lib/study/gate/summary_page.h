// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lib/study/gate/cases.h"
#include "lib/study/gate/json.h"

namespace kv::gate {

// A summary.json, kvtool's own (kvtool.gate/1) or the one of the engine's suite.
struct Summary {
  std::string file;  // as given
  Json document;
};

// Parses and checks as much as the renderers rely on. Throws kBadText, kBadField, kLimit.
Summary ParseSummary(std::string_view text, std::string_view file);

// The newest by generated_at; the last one where one does not say. There is one at least.
const Summary& Newest(std::span<const Summary> summaries);

// The self-contained page of the newest summary, with the history of all of them. Every key may be
// absent: the page shows what is there.
std::string SummaryPage(std::span<const Summary> summaries, std::string_view footer,
                        Engines engines);
// One test suite per case, one test per rule.
std::string SummaryJunit(const Summary& summary, Engines engines);

}  // namespace kv::gate
