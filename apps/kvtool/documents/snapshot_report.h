// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "formats/run/run.h"
#include "lib/core/codec/profiled/profile.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/core/transform/transform.h"
#include "lib/fields/fields.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv {

// Shows snapshots: the same facts as text for people and as fields for programs.
std::string DescribeText(const Snapshot& snapshot, const Console& console, bool every_layer);
struct SnapshotDescription {
  const Snapshot& snapshot;
  bool every_cell = false;             // false: only a summary of cells
  std::vector<LayerStats> stats = {};  // one per layer, or empty
  std::optional<RecordedRun> run = {};
  const Profile* profile = nullptr;
  const Transform* transform = nullptr;
};
const Fields<SnapshotDescription>& SnapshotDescriptionFields();
// Returns a line for each run of cells of one stream with the same sequences at ascending
// positions.
std::string CellsText(const Snapshot& snapshot);
// Prints the notes that are warnings on stderr.
void WarnAboutNotes(std::span<const Note> notes, const std::string& path, Console& console);

// Returns "profile of smollm, 60 tensors, 152.3 KiB".
std::string ProfileSummary(const Profile& profile);
// Returns the summary with a table of the entries.
std::string ProfileText(const Profile& profile);
const Fields<Profile>& ProfileFields();

}  // namespace kv
