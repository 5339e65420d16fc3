// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/line/options.h"
#include "formats/run/run.h"
#include "formats/trace/trace.h"

namespace kv {

// The common part of replays of a snapshot with the trace of its queries.
class TraceReplay : public EachCommand {
 public:
  // In a folder, takes inputs that have their own trace, unless all share one.
  bool Takes(std::string_view format, bool is_run) const override {
    return is_run || (!trace_.empty() && !format.empty());
  }
  OpenOptions Reading() const override { return snapshot_.WithLimit(); }
  void TakeRuns() override;
  void Files(CommandFiles& files) const override;

 protected:
  struct Opened {
    OpenOptions options;
    AttentionTrace trace;
    Snapshot snapshot;
  };
  // Opens snapshot and trace, which must match, and prints the warnings of their readers.
  Opened Open(Console& console) const;
  // Returns the weights of --sensitivity or, for a trace without gradients, those of the run.
  // Gradients are more precise than weights.
  std::optional<std::map<uint32_t, double>> WeightsFor(const AttentionTrace& trace) const;
  // Returns the model's name from the run or the trace, or the name of the --model file.
  std::string ModelName(const AttentionTrace& trace) const {
    return snapshot_.ModelName(run_ && !run_->model.empty() ? run_->model : trace.model);
  }
  // Declares the options at the end of every replay's help.
  void DeclareRest(
      CommandLine& line, const char* rope_text,
      SnapshotOptions::TransformFlag transform = SnapshotOptions::TransformFlag::kOfArchives);

  std::string trace_, sensitivity_;
  int64_t prompt_ = -1;
  uint64_t rows_ = 512, seed_ = 0;
  bool detail_ = false, force_ = false;
  std::optional<RecordedRun> run_;
  RopeOptions rope_;
};

}  // namespace kv
