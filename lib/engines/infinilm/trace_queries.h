// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/infinilm/quality.h"

namespace kv {

// Returns the queries of a trace, for MeasureStep. The trace must outlive the result. Throws
// kTraceMismatch if it recorded no queries.
RecordedQueries QueriesOf(const AttentionTrace& trace);

}  // namespace kv
