// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/quantisation/replay.h"

namespace kv::quantisation {

// Returns "avx", "ref" or "arm".
std::string_view RoundingName(Q8Rounding rounding);
// Returns "q8_0" and so on; for K or V that is kept as it is, the first pair's type.
std::string_view TypeName(const ReplayRequest& request, const TypePair& pair, bool is_key);
// Returns "-ctk q8_0 -ctv q5_1 -fa on", or "" if llama.cpp has no such cache.
std::string EngineFlags(const ReplayRequest& request, const TypePair& pair);

// Data of kvtool.quant apart from its inputs, plans and advice.
struct Report {
  const Snapshot& snapshot;
  const AttentionTrace& trace;
  const ReplayRequest& request;
  const ReplayResult& result;
  bool detail = false;  // true: give figures of every head
  std::string model;    // model name for captions; empty: the snapshot's own
};
const Fields<Report>& ReportFields();

// Size and loss of a choice of types, for a cache of some number of tokens.
struct OutcomeOf {
  Outcome outcome;
  uint64_t tokens = 0;
};
const Fields<OutcomeOf>& OutcomeFields();

// Returns a table for the console and the page, with a row for each pair.
TextTable PairTable(const Report& report);
// Returns notes on how to read the figures.
std::vector<std::string> WriteNotes(const ReplayResult& result);
// Returns "7.08%": three digits of a share, however small.
std::string ShareText(double share);
// Returns the expected real KL and the range of most runs of the study; "-" if unknown.
std::string ExpectedText(const Outcome& outcome);

// Returns a self-contained page.
report::Page ReportPage(const Report& report, const std::vector<std::string>& notes);

}  // namespace kv::quantisation
