// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/trace_replay.h"

#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/run_input.h"

namespace kv {

void TraceReplay::TakeRuns() {
  run_ = TakeRun(input_, snapshot_);
  TakeTrace(run_, trace_);
  TakeRope(run_, snapshot_, rope_);
}

void TraceReplay::Files(CommandFiles& files) const {
  files.Reads({input_, trace_, sensitivity_, rope_.freqs});
  snapshot_.Files(files);
  page_.Files(files);
  report_.Files(files);
}

TraceReplay::Opened TraceReplay::Open(Console& console) const {
  RequireTrace(trace_, input_);
  const OpenOptions options = snapshot_.Resolve(flags_for());
  AttentionTrace trace = OpenTrace(trace_, options);
  Snapshot snapshot = OpenSnapshot(snapshot_.Open(input_), options, FindGeometry(trace));
  if (snapshot.layers.empty()) {
    throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers").File(input_);
  }
  RequireHeads(snapshot, "a replay");
  try {
    RequireMatch(trace, snapshot);
  } catch (Error& error) {
    // The error names the snapshot, because several may share one trace.
    if (flags_for() == FlagsFor::kSeveral) error.In("with " + input_);
    throw;
  }
  WarnAboutNotes(snapshot.notes, input_, console);
  for (const Note& note : trace.notes) console.Warn(trace_, note.text);
  return {options, std::move(trace), std::move(snapshot)};
}

std::optional<std::map<uint32_t, double>> TraceReplay::WeightsFor(
    const AttentionTrace& trace) const {
  const bool by_run = sensitivity_.empty() && run_ && !trace.gradients;
  const std::string& file = by_run ? run_->sensitivity : sensitivity_;
  return file.empty() ? std::nullopt : std::optional(ReadSensitivity(file).Weights());
}

void TraceReplay::DeclareRest(CommandLine& line, const char* rope_text,
                              SnapshotOptions::TransformFlag transform) {
  rope_.Declare(line, rope_text);
  snapshot_.Declare(line, transform);
  report_.Declare(line);
}

}  // namespace kv
