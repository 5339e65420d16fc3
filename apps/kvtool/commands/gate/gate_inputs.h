// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/kvtool/command.h"
#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/study/gate/cases.h"
#include "lib/study/gate/metrics.h"

namespace kv {

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
  // InputRecord of every snapshot, trace and reference opened.
  const nlohmann::ordered_json& records() const { return records_; }

 private:
  SnapshotOptions OptionsFor(const gate::Reading& reading) const;
  const Snapshot& Reference(const gate::CaseSpec& spec, OpenOptions options);
  std::string Record(const Source& source);  // its hash

  Console& console_;
  SnapshotOptions options_;
  std::map<std::string, std::unique_ptr<Pair>> pairs_;
  std::map<std::string, std::unique_ptr<Snapshot>> references_;
  nlohmann::ordered_json records_ = nlohmann::ordered_json::array();
};

}  // namespace kv
