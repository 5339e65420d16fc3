// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/result.h"

namespace kv::gate {

// Writes a config for users with runs but without thresholds. Every limit is a figure measured on
// the run itself, less a margin for the figure's noise; the config explains both. So the gate
// passes on the same data, and fails on data that are clearly worse.

// The data that a case is sized to.
struct DataSize {
  uint64_t layers = 0, prompt_tokens = 0, tokens = 0;  // of the whole cache; the prompt is shorter
  bool has_attention = false;                          // queries or probabilities were recorded
};

// A case without rules, with parameters that fit some data, and a sentence about its purpose.
struct SizedCase {
  CaseSpec spec;
  std::string_view question;
};

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

// End of the prompt in each sample; the first is the run's own.
std::vector<uint64_t> SamplePrompts(const DataSize& size);

// Returns kvtool.gate-config/1 with comments. `made_by` is in its first line. The list must not be
// empty.
std::string FirstConfig(std::span<const MeasuredRun> runs, const Engine& engine,
                        std::string_view made_by);

// A rule for a first config, and how its limit was found.
struct SizedRule {
  Rule rule;
  std::string remark;
};

// Sizes the rules of one case to the measured figures. `recordings` are this case in every run of
// the same kind, this one first. Unknown figures get no rule.
std::vector<SizedRule> SizeRules(std::span<const MeasuredCase* const> recordings);

}  // namespace kv::gate
