// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/engine.h"

namespace kv::gate {

// Writes a config for somebody who has runs and no thresholds yet. Every limit is a figure that was
// measured on the run itself, less a margin that is sized to the figure's noise; the config says
// both in words. So the gate passes on the same data, and fails on data that are clearly worse.

// One case of a run. The first sample is the case as the config will have it; the others move the
// end of the prompt, so that the figures are over other tokens.
struct MeasuredCase {
  SizedCase sized;
  std::vector<CaseResult> samples;
};

struct MeasuredRun {
  std::string name;             // of the run; cases are called after it
  std::string snapshot, trace;  // as the config gives them
  Reading reading;
  std::string kind;  // runs of one kind are recordings of the same thing: they show its noise
  bool has_attention = false;
  std::vector<MeasuredCase> cases;
};

// Where the prompt of each sample ends: the first is the run's own.
std::vector<uint64_t> SamplePrompts(const DataSize& size);

// Returns kvtool.gate-config/1 with comments. `made_by` stands in its first line. The list must not
// be empty.
std::string FirstConfig(std::span<const MeasuredRun> runs, Engines engines,
                        std::string_view made_by);

}  // namespace kv::gate
