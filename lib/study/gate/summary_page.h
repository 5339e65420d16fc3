// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lib/report/html.h"
#include "lib/study/gate/cases.h"
#include "lib/study/gate/json.h"

namespace kv::gate {

// A summary.json: either kvtool's own (kvtool.gate/1) or that of an engine's suite.
struct Summary {
  std::string file;  // as given
  Json document;
};

// Parses a summary and checks what the renderers rely on. Throws kBadText, kBadField, kLimit. In
// summary_view.cc.
Summary ParseSummary(std::string_view text, std::string_view file);

// Returns the newest summary by generated_at, or the last one if any lacks a date. The list must
// not be empty.
const Summary& Newest(std::span<const Summary> summaries);

// Renders the newest summary as a self-contained HTML page with the history of all of them. Any key
// may be absent; the page shows what is there.
report::Page SummaryPage(std::span<const Summary> summaries, Engines engines);
// Renders a summary as JUnit XML, with one test suite per case and one test per rule. In
// summary_junit.cc.
std::string SummaryJunit(const Summary& summary, Engines engines);

}  // namespace kv::gate
