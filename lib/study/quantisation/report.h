// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/fields/fields.h"
#include "lib/report/html.h"
#include "lib/study/quantisation/replay.h"

namespace kv::quantisation {

// "avx", "ref" or "arm".
std::string_view RoundingName(Q8Rounding rounding);
// "q8_0"; the first pair's type for a side that is kept as it is.
std::string_view TypeName(const ReplayRequest& request, const TypePair& pair, bool is_key);
// "-ctk q8_0 -ctv q5_1 -fa on"; empty where llama.cpp has no such cache.
std::string EngineFlags(const ReplayRequest& request, const TypePair& pair);

// What kvtool.quant says beside its inputs, plans and advice.
struct Report {
  const Snapshot& snapshot;
  const AttentionTrace& trace;
  const ReplayRequest& request;
  const ReplayResult& result;
  bool detail = false;  // whether to give figures of every head
  std::string model;    // its name, for captions; empty: the snapshot's own
};
const Fields<Report>& ReportFields();

// What a choice of types leaves of a cache of so many tokens.
struct OutcomeOf {
  Outcome outcome;
  uint64_t tokens = 0;
};
const Fields<OutcomeOf>& OutcomeFields();

// What people read, on the console and in the page: a row for each pair.
TextTable PairTable(const Report& report);
// How the figures are to be read.
std::vector<std::string> NotesOf(const ReplayResult& result);
// "7.08%": three digits of a share, however small.
std::string ShareText(double share);
// What the real KL is expected to be, and where most runs of the study lie; "-" where unknown.
std::string ExpectedText(const Outcome& outcome);

// A self-contained page.
report::Page ReportPage(const Report& report, const std::vector<std::string>& notes);

}  // namespace kv::quantisation
