// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/report/html.h"
#include "lib/study/gate/summary_view.h"

namespace kv::gate {

// Returns the newest summary by generated_at, or the last one if any lacks a date. The list must
// not be empty.
const Summary& Newest(std::span<const Summary> summaries);

// Renders the newest summary as a self-contained HTML page with the history of all of them. Any key
// may be absent; the page shows those that exist.
report::Page SummaryPage(std::span<const Summary> summaries, const Engine& engine);

}  // namespace kv::gate
