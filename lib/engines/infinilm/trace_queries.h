// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/infinilm/quality.h"

namespace kv {

// The queries of a trace, as MeasureStep asks them. The trace must outlive the result. Throws
// kTraceMismatch if it recorded no queries.
RecordedQueries QueriesOf(const AttentionTrace& trace);

}  // namespace kv
