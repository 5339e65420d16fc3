// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/gate/gate_inputs.h"

#include <fmt/format.h>

#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "formats/registry.h"
#include "formats/trace/trace.h"
#include "lib/core/snapshot/attention_trace.h"

namespace kv {

SnapshotOptions GateInputs::OptionsFor(const gate::Reading& reading) const {
  SnapshotOptions options = options_;
  if (!reading.from.empty()) options.open.from = reading.from;
  if (!reading.gguf.empty()) options.gguf = reading.gguf;
  if (reading.kv_heads != 0) options.kv_heads = reading.kv_heads;
  if (reading.head_dim != 0) options.head_dim = reading.head_dim;
  return options;
}

GateInputs::Pair& GateInputs::Open(const gate::CaseSpec& spec, ThreadPool& pool) {
  if (spec.snapshot.empty()) {
    throw Error(Finding::kUsage, fmt::format("case '{}' has no snapshot", Escaped(spec.name)))
        .Hint("give the case 'snapshot', or all cases --snapshot");
  }
  const gate::Reading& reading = spec.reading;
  const bool replays = !gate::OnlyCompares(spec);
  if (!replays && spec.reference.empty()) {
    throw Error(Finding::kUsage, fmt::format("case '{}' has no reference", Escaped(spec.name)))
        .Hint("give the case 'reference', or all cases --reference");
  }
  const std::string key = fmt::format(
      "{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", spec.snapshot, spec.trace, reading.from, reading.gguf,
      reading.kv_heads, reading.head_dim, spec.reference, spec.reference_from, replays);
  std::unique_ptr<Pair>& pair = pairs_[key];
  if (pair != nullptr) return *pair;

  SnapshotOptions how = OptionsFor(reading);
  std::string snapshot_path = spec.snapshot, trace_path = spec.trace;
  TakeTrace(TakeRun(snapshot_path, how), trace_path);
  const OpenOptions options = how.Resolve(FlagsFor::kSeveral);
  std::optional<AttentionTrace> trace;
  Source trace_files;
  if (replays && !trace_path.empty()) {
    trace_files = OpenTraceFiles(trace_path, options);
    trace = OpenTrace(trace_files, options);
    for (const Note& note : trace->notes) console_.Warn(trace_path, note.text);
  }
  const std::string beside = replays && trace_path.empty() ? TraceBeside(snapshot_path) : "";
  if (!beside.empty()) {
    console_.Say(fmt::format("{}: no trace is given, and --trace {} lies beside it",
                             Printable(snapshot_path), Printable(beside)));
  }
  auto opened = std::make_unique<Pair>(Pair{
      OpenSnapshot(how.Open(snapshot_path), options, trace ? GeometryOf(*trace) : std::nullopt),
      std::move(trace)});
  const Snapshot& snapshot = opened->snapshot;
  if (snapshot.layers.empty()) {
    throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers")
        .File(snapshot_path);
  }
  if (replays) RequireHeads(snapshot, "a replay");
  if (opened->trace) {
    RequireMatch(*opened->trace, snapshot);
    const std::string undefined = Remark(CheckTraceRows(*opened->trace, pool));
    if (!undefined.empty()) console_.Warn(trace_path, undefined);
  }
  WarnOf(snapshot.notes, snapshot_path, console_);
  opened->snapshot_hash = Record(snapshot.source);
  if (opened->trace) opened->trace_hash = Record(trace_files);
  if (!spec.reference.empty()) opened->reference = &Reference(spec, options);
  pair = std::move(opened);
  return *pair;
}

// Found by its content, whatever the snapshot is.
const Snapshot& GateInputs::Reference(const gate::CaseSpec& spec, OpenOptions options) {
  options.from = spec.reference_from;
  options.layout.clear();
  if (!HasTrait(spec.reference_from, kReadsRaw)) options.raw.clear();
  const gate::Reading& reading = spec.reading;
  auto& reference =
      references_[fmt::format("{}\n{}\n{}\n{}\n{}", spec.reference, spec.reference_from,
                              reading.gguf, reading.kv_heads, reading.head_dim)];
  if (reference == nullptr) {
    std::string path = spec.reference;
    SnapshotOptions unused;
    TakeRun(path, unused);
    reference = std::make_unique<Snapshot>(OpenSnapshot(options_.Open(path), options));
    WarnOf(reference->notes, spec.reference, console_);
    Record(reference->source);
  }
  return *reference;
}

std::string GateInputs::Record(const Source& source) {
  const nlohmann::ordered_json record = InputRecord(source);
  if (std::find(records_.begin(), records_.end(), record) == records_.end()) {
    records_.push_back(record);
  }
  return record["xxh3"];
}

}  // namespace kv
