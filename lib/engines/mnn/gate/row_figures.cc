// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/row_figures.h"

#include <algorithm>

namespace kv::mnn {

using gate::Where;
using runtime::Event;
using runtime::EventKind;
using runtime::ReplayResult;

namespace {

const Event* Last(const ReplayResult& row, EventKind kind) {
  const auto found = std::find_if(row.events.rbegin(), row.events.rend(),
                                  [&](const Event& event) { return event.kind == kind; });
  return found == row.events.rend() ? nullptr : &*found;
}

}  // namespace

const ReplayedRow& RowWithMost(const Rows& rows, const Value& value) {
  return *std::max_element(rows.begin(), rows.end(),
                           [&](const ReplayedRow& a, const ReplayedRow& b) {
                             return value(a.replay) < value(b.replay);
                           });
}

const ReplayedRow& RowWithLeast(const Rows& rows, const Value& value) {
  return RowWithMost(rows, [&](const ReplayResult& row) { return -value(row); });
}

double MeanOf(const Rows& rows, const Value& value) {
  double sum = 0;
  for (const ReplayedRow& row : rows) sum += value(row.replay);
  return sum / static_cast<double>(rows.size());
}

Where TokensOf(uint32_t layer, uint64_t begin, uint64_t end) {
  Where where;
  where.layer = layer;
  where.token_begin = begin;
  where.token_end = end;
  return where;
}

Where LastPlan(const ReplayResult& row) {
  const Event* event = Last(row, EventKind::kEvict);
  return event == nullptr ? Where{} : TokensOf(event->layer, 0, event->length);
}

Where FirstEvent(const ReplayResult& row, EventKind kind) {
  const auto found = std::find_if(row.events.begin(), row.events.end(),
                                  [&](const Event& event) { return event.kind == kind; });
  return found == row.events.end()
             ? Where{}
             : TokensOf(found->layer, found->begin, found->begin + found->tokens);
}

}  // namespace kv::mnn
