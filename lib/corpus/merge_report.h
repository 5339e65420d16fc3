// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/corpus/merge.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv::corpus {

// The distribution of a figure over inputs.
struct Spread {
  FigureKey key;
  uint64_t count = 0;
  double mean = 0, deviation = 0, min = 0, p5 = 0, median = 0, p95 = 0, max = 0;
  // for ratios: the sum of all numerators over the sum of all denominators
  std::optional<double> weighted;
};
const Fields<Spread>& SpreadFields();

// A value far from the others.
struct Outlier {
  FigureKey key;
  std::string name;  // of the input
  double value = 0, median = 0;
  std::string command;
};

// Inputs of one model and format, with the figures of whole caches.
struct GroupReport {
  MergedGroup group;
  std::vector<Spread> figures;
};

// A failed input. Without a text it has a negative verdict.
struct MergeFailure {
  std::string name;
  int exit_code = 0;
  std::string finding, text, command;
};

// The report of kvtool merge on a corpus, besides its header and inputs.
struct MergeReport {
  const Merged* merged = nullptr;      // must outlive the report
  std::optional<std::string> verdict;  // over all inputs, if the command gives verdicts
  std::vector<Spread> figures;
  std::vector<GroupReport> groups;  // by model and format
  std::vector<Outlier> outliers;
  std::vector<MergeFailure> failures;
};
MergeReport ReportOf(const Merged& merged);
const Fields<MergeReport>& MergeReportFields();

// Returns the number of each case's verdicts, and the rules that failed.
TextTable CaseTable(const MergeReport& report);
// Returns the spreads of whole caches.
TextTable FigureTable(std::span<const Spread> figures);
// Returns the table without one column.
TextTable Without(std::string_view column, TextTable table);

// Returns a page about a corpus: the gate's verdict, how figures are spread, by layer and by model,
// outliers and how to inspect them, and failures.
report::Page MergedPage(const MergeReport& report);
// Writes JUnit XML: one suite per input, with one test per case of a gate, or else one test.
void WriteMergedJunit(const Merged& merged, const std::function<void(std::string_view)>& write);

}  // namespace kv::corpus
