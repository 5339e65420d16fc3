// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "apps/kvtool/line/options.h"
#include "formats/run/run.h"
#include "lib/fields/fields.h"

namespace kv {

// If `path` is a recorded run, replaces it by the run's snapshot and takes from the run what no
// flag gives: the number of kv heads. Throws what OpenRun throws does.
std::optional<RecordedRun> TakeRun(std::string& path, SnapshotOptions& options);
// Returns the text about a run for `inspect`, which opens its trace.
std::string RunText(const RecordedRun& run, const OpenOptions& reading);
const Fields<RecordedRun>& RecordedRunFields();

// Takes the rotation of the run's keys, if no flag and no model file gives it.
void TakeRope(const std::optional<RecordedRun>& run, const SnapshotOptions& options,
              RopeOptions& rope);
// Takes the run's trace, if no flag names one and the run has one.
void TakeTrace(const std::optional<RecordedRun>& run, std::string& trace);
// Returns true if an array belongs to a trace DIR/STEM-L0-Q.npy, whose arrays resemble caches, or
// if a file has the name of a trace, DIR/STEM.trace.npz, which may contain K and V, too.
bool IsOfTrace(const std::filesystem::path& file);
// Returns the trace beside a snapshot DIR/STEM.*: DIR/STEM of its arrays (DIR/STEM-L0-Q.npy ...),
// or the file DIR/STEM.trace.safetensors (.npz, .pt). Empty if there is none.
std::string TraceBeside(const std::string& snapshot);
// Throws unless there is a trace. A missing snapshot is reported before its missing trace.
void RequireTrace(const std::string& trace, const std::string& input);

}  // namespace kv
