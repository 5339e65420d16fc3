// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/gate/gate_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "formats/registry.h"
#include "formats/trace/trace.h"
#include "lib/core/base/file.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/remote/url.h"
#include "lib/study/gate/baseline.h"

namespace kv {
namespace {

constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;

}  // namespace

bool IsGateConfig(const std::string& path) {
  std::error_code failed;
  if (path == "-") return true;
  if (std::filesystem::is_directory(path, failed)) return false;
  if (!std::filesystem::is_regular_file(path, failed)) {
    return path.find_first_of("*?[") == path.npos && !remote::IsUrl(path);
  }
  std::ifstream file(path, std::ios::binary);
  std::array<char, 512> head;
  file.read(head.data(), head.size());
  return std::find(head.begin(), head.begin() + file.gcount(), '\0') ==
         head.begin() + file.gcount();
}

std::string ReadGateText(const std::string& path) {
  const auto file = FileSource::OpenSmall(path, kMostConfigBytes, "a configuration or summary");
  const ByteSpan bytes = file->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

gate::Config ReadGateConfig(const std::string& path) {
  try {
    return gate::ParseConfig(ReadGateText(path),
                             std::filesystem::path(path == "-" ? "" : path).parent_path(),
                             mnn::Engine());
  } catch (Error& error) {
    throw error.File(path);
  }
}

gate::Baseline ReadGateBaseline(const std::string& path) {
  try {
    return gate::ParseBaseline(ReadGateText(path), path, mnn::Engine());
  } catch (Error& error) {
    throw error.File(path);
  }
}

gate::OutputNames PlaceOutputs(gate::OutputNames names) {
  std::error_code ignored;
  const auto type = std::filesystem::status(names.summary_json, ignored).type();
  if (names.summary_json.empty() || type == std::filesystem::file_type::character ||
      type == std::filesystem::file_type::fifo) {
    return names;
  }
  const std::filesystem::path folder = std::filesystem::path(names.summary_json).parent_path();
  if (names.summary_md.empty()) names.summary_md = (folder / "summary.md").string();
  if (names.cases_jsonl.empty()) names.cases_jsonl = (folder / "cases.jsonl").string();
  return names;
}

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
  HashedFile record = HashedFile::Of(source);
  const std::string hash = record.xxh3;
  const bool is_known = std::any_of(records_.begin(), records_.end(), [&](const HashedFile& known) {
    return known.file == record.file && known.xxh3 == hash && known.bytes == record.bytes;
  });
  if (!is_known) records_.push_back(std::move(record));
  return hash;
}

}  // namespace kv
