// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/dump_entry.h"
#include "lib/core/snapshot/rope.h"
#include "lib/fields/fields.h"

// The two reports of MNN's distribution experiment: one row per dump, under the original's column
// names and in its order. Columns that do not apply to an element size are 0, as in the original.
namespace kv::analysis {

struct RowOptions {
  int zstd_level = 3;
  // Rotary embedding of the model, if known: K is then measured twice more with it undone, with
  // MNN's pairs (2i, 2i+1) under its names, and with pairs of halves (i, i + dims/2), which most
  // models need, under k_rope_inv_half_*. Positions are indices in the dump, so they are wrong
  // after an eviction.
  std::optional<ModelRope> rope;
};

// Return one row per entry without defect. Throw kUsage if the rotation does not fit.
std::vector<Value> DistributionRows(std::span<const DumpEntry> entries, const RowOptions& options,
                                    ThreadPool& pool);
std::vector<Value> PackedRows(std::span<const PackedEntry> entries, const RowOptions& options,
                              ThreadPool& pool);

// Averages every ratio and entropy over the rows, as MNN's summaries do: over all rows or, if
// `positive_only`, over values above 0. A dump of one token weighs as much as a long one.
Value RowAverages(const std::vector<Value>& rows, bool positive_only);

// Formats the rows as comma-separated values below a heading, numbers as Python prints them.
std::string RowsCsv(const std::vector<Value>& rows);

// The rows as a document. Columns without a ratio are 0 in MNN's files and null here.
struct RowsReport {
  Value averages;
  std::vector<Value> rows;
};
RowsReport ReportRows(const std::vector<Value>& rows, bool positive_only);
const Fields<RowsReport>& RowsReportFields();

}  // namespace kv::analysis
