// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/study/gate/engine.h"
#include "lib/study/gate/summary_view.h"
#include "lib/study/report/html.h"

namespace kv::gate {

// The pictures of a gate's page. For summary_page.cc.

report::Tone ToneOf(Status status);
// "1 failed, 3 passed, 2 not run"
std::string CountText(const SummaryView& view);

// Lossless ratio and attention error by layer; bytes held by token.
void AddLayers(const CaseView& c, report::Page& page);
void AddBytes(const CaseView& c, report::Page& page);
// Verdicts and figures over runs, the oldest first; nothing for a single one.
void AddHistory(const std::vector<SummaryView>& history, std::span<const HistoryFigure> figures,
                report::Page& page);

}  // namespace kv::gate
