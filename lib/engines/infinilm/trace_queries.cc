// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/infinilm/trace_queries.h"

#include <fmt/format.h>

#include <numeric>

namespace kv {

RecordedQueries QueriesOf(const AttentionTrace& trace) {
  if (trace.level != TraceLevel::kQueries) {
    throw Error(
        Finding::kTraceMismatch,
        fmt::format("holds {}, but only queries can measure a changed cache", Name(trace.level)))
        .File(trace.path);
  }
  RecordedQueries queries;
  queries.query_heads = trace.query_heads;
  queries.positions.resize(trace.rows);
  std::iota(queries.positions.begin(), queries.positions.end(),
            static_cast<int64_t>(trace.q_start));
  queries.rule_of = [&trace](uint32_t index) { return RuleOf(trace, *trace.Find(index)); };
  queries.read = [&trace](uint32_t index, uint32_t head, std::vector<float>& out) {
    const TraceLayer* layer = trace.Find(index);
    if (layer == nullptr || !layer->queries) return false;
    out.resize(trace.rows * trace.head_dim);
    ReadQueries(*layer, head, 0, trace.rows, out.data());
    return true;
  };
  return queries;
}

}  // namespace kv
