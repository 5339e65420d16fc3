// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/dump_entries.h"
#include "lib/engines/infinilm/quality.h"

// The two reports of MNN's distribution experiment: one row per dump, under the original's column
// names, in its order. Columns that do not apply to an element size are 0 there and here.
namespace kv::analysis {

struct RowOptions {
  int zstd_level = 3;
  // Where known, K is also measured with its rotation undone: in the original's pairing (2i, 2i+1)
  // under its names, and with halves paired (i, i + dims/2) under k_rope_inv_half_*, which most
  // models need. Positions are those of the dump, so they are wrong after an eviction.
  Rope rope;
};

// Entries with a defect have no row.
std::vector<nlohmann::ordered_json> DistributionRows(std::span<const offline::Entry> entries,
                                                     const RowOptions& options, ThreadPool& pool);
std::vector<nlohmann::ordered_json> PackedRows(std::span<const PackedEntry> entries,
                                               const RowOptions& options, ThreadPool& pool);

// Means over rows of every ratio and entropy, as the original's summaries have them: of all rows,
// or, with `positive_only`, of those above 0. Dumps of one token weigh as much as long ones.
nlohmann::ordered_json RowAverages(const std::vector<nlohmann::ordered_json>& rows,
                                   bool positive_only);

// Comma-separated, with a heading, numbers as Python prints them.
std::string RowsCsv(const std::vector<nlohmann::ordered_json>& rows);

}  // namespace kv::analysis
