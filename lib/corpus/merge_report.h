// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/corpus/merge.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv::corpus {

// How a figure is spread over inputs.
struct Spread {
  FigureKey key;
  uint64_t count = 0;
  double mean = 0, deviation = 0, min = 0, p5 = 0, median = 0, p95 = 0, max = 0;
  std::optional<double> weighted;  // of ratios: all originals over all that is left
};
const Fields<Spread>& SpreadFields();

// A value that lies far from the others.
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

// An input that is not done. Without a text it has a negative verdict.
struct MergeFailure {
  std::string name;
  int exit_code = 0;
  std::string finding, text, command;
};

// What kvtool merge says of a corpus, beside its header and inputs.
struct MergeReport {
  const Merged* merged = nullptr;      // must outlive the report
  std::optional<std::string> verdict;  // over all inputs, where the command gives verdicts
  std::vector<Spread> figures;
  std::vector<GroupReport> groups;  // by model and format
  std::vector<Outlier> outliers;
  std::vector<MergeFailure> failures;
};
MergeReport ReportOf(const Merged& merged);
const Fields<MergeReport>& MergeReportFields();

// How often each case of a gate came to which verdict, and what rules failed.
TextTable CaseTable(const MergeReport& report);
// The spreads of whole caches.
TextTable FigureTable(std::span<const Spread> figures);
// Leaves out a column.
TextTable Without(std::string_view column, TextTable table);

// A corpus at a glance: what a gate says of it, how figures are spread, by layer and by model, what
// lies far out and how to look at it, and what failed.
report::Page MergedPage(const MergeReport& report, const std::string& footer);
// JUnit XML: one suite for each input, with a test for each case of a gate, else one.
void WriteMergedJunit(const Merged& merged, const std::function<void(std::string_view)>& write);

}  // namespace kv::corpus
