// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"

namespace kv {

// Rows of a trace that yield no figure because some value of some query head is NaN or Inf.
struct UndefinedRows {
  uint64_t rows = 0, of = 0;  // rows of layers
  uint32_t first_layer = 0;   // of the first one
  uint64_t first_position = 0;
};

// Walks every row. Throws kTraceMismatch for recorded values that are not probabilities: negative,
// above 1 or not finite.
UndefinedRows CheckTraceRows(const AttentionTrace& trace, ThreadPool& pool);

// Counts the rows of gradients that hold NaN or Inf, in layers that have gradients.
UndefinedRows CheckGradients(const AttentionTrace& trace, ThreadPool& pool);

// The text of a warning about rows of `what`; empty if there are none.
std::string Remark(const UndefinedRows& undefined, std::string_view what = "query rows");

}  // namespace kv
