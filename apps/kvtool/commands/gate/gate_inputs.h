// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <memory>
#include <string>

#include "apps/kvtool/command.h"
#include "apps/kvtool/documents/document_fields.h"
#include "lib/core/base/output.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/study/gate/config.h"

namespace kv {

// Whether a word of the command line is a config, and no snapshot or recorded run: a text, which no
// cache is. What is not there counts as one.
bool IsGateConfig(const std::string& path);

// The text of a config or summary. Throws kLimit beyond 16 MiB, and what FileSource::Open throws.
std::string ReadGateText(const std::string& path);

// Paths in a config are relative to its folder. Both name the file in what they throw: kUsage or
// kFormat of ParseConfig and ParseBaseline, and what ReadGateText throws.
gate::Config ReadGateConfig(const std::string& path);
gate::Baseline ReadGateBaseline(const std::string& path);

// The three files that the original writes, side by side. /dev, or where a pipe lies, is no place
// for the other two.
gate::OutputNames PlaceOutputs(gate::OutputNames names);

// All files of a run, refused before the first case runs and finished together.
class OutputFiles {
 public:
  explicit OutputFiles(OutputRules rules) : rules_(std::move(rules)) {}

  void Open(const std::string& path) {
    if (!path.empty()) files_.emplace(path, std::make_unique<AtomicFile>(path, rules_));
  }
  void Write(const std::string& path, const std::string& text) {
    if (!path.empty()) files_.at(path)->Write(AsBytes(text));
  }
  void Commit() {
    for (auto& [path, file] : files_) file->Commit();
  }

 private:
  OutputRules rules_;
  std::map<std::string, std::unique_ptr<AtomicFile>> files_;
};

// The snapshots and traces of a gate, each pair opened once for all its cases.
class GateInputs {
 public:
  GateInputs(Console& console, SnapshotOptions options)
      : console_(console), options_(std::move(options)) {}

  struct Pair {
    Snapshot snapshot;
    std::optional<AttentionTrace> trace = {};
    const Snapshot* reference = nullptr;
    gate::Measurements of_snapshot = {};
    std::string snapshot_hash = {}, trace_hash = {};
  };
  // What a case is replayed on or compared with. Throws kUsage for a case without a snapshot, and
  // what opening and RequireMatch throw.
  Pair& Open(const gate::CaseSpec& spec, ThreadPool& pool);
  // Every snapshot, trace and reference opened.
  const std::vector<HashedFile>& records() const { return records_; }

 private:
  SnapshotOptions OptionsFor(const gate::Reading& reading) const;
  const Snapshot& Reference(const gate::CaseSpec& spec, OpenOptions options);
  std::string Record(const Source& source);  // its hash

  Console& console_;
  SnapshotOptions options_;
  std::map<std::string, std::unique_ptr<Pair>> pairs_;
  std::map<std::string, std::unique_ptr<Snapshot>> references_;
  std::vector<HashedFile> records_;
};

}  // namespace kv
