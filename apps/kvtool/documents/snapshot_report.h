// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "apps/kvtool/console/console.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// How a snapshot is shown: the same facts as text for people and as JSON for programs.
std::string DescribeText(const Snapshot& snapshot, const Console& console, bool every_layer);
// With every cell, or a summary of them alone.
nlohmann::ordered_json DescribeJson(const Snapshot& snapshot, bool every_cell = false);
// A line for each run of cells of one stream with the same sequences at rising positions.
std::string CellsText(const Snapshot& snapshot);
// The notes that are warnings, on stderr.
void WarnOf(std::span<const Note> notes, const std::string& path, Console& console);

}  // namespace kv
