// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/line/options.h"
#include "formats/run/run.h"
#include "formats/trace/trace.h"

namespace kv {

// What replays of a snapshot with the trace of its queries have in common.
class TraceReplay : public EachCommand {
 public:
  // In a folder: what brings a trace, unless all share one.
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
  // Opens both, which must match, and warns of what their readers noted.
  Opened Open(Console& console) const;
  // Returns the weights of --sensitivity, or those of the run for a trace without gradients, which
  // tell more.
  std::optional<std::map<uint32_t, double>> WeightsFor(const AttentionTrace& trace) const;
  // Returns the model's name as the run or the trace has it, or the name of the --model file.
  std::string ModelName(const AttentionTrace& trace) const {
    return snapshot_.ModelName(run_ && !run_->model.empty() ? run_->model : trace.model);
  }
  // The options at the end of every replay's help.
  void DeclareRest(CommandLine& line, const char* rope_text);

  std::string trace_, sensitivity_;
  int64_t prompt_ = -1;
  uint64_t rows_ = 512, seed_ = 0;
  bool detail_ = false, force_ = false;
  std::optional<RecordedRun> run_;
  RopeOptions rope_;
};

}  // namespace kv
