// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/report/html.h"
#include "lib/study/gate/summary_view.h"

namespace kv::gate {

// The charts of a gate's page, for summary_page.cc.

report::Tone ToneOf(Status status);
// "1 failed, 3 passed, 2 not run"
std::string CountText(const SummaryView& view);

// Add charts of lossless ratio and attention error by layer, and of bytes held by token.
void AddLayers(const CaseView& c, report::Page& page);
void AddBytes(const CaseView& c, report::Page& page);
// Adds verdicts and figures over several runs, the oldest first. Adds nothing for a single run. In
// summary_history.cc.
void AddHistory(const std::vector<SummaryView>& history, const Engine& engine, report::Page& page);
// A run's commit, shortened; else its date, else its file.
std::string RunName(const SummaryView& view);

}  // namespace kv::gate
