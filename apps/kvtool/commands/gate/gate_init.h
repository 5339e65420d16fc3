// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "apps/kvtool/commands/gate/gate_cases.h"

namespace kv {

// Runs to be measured, and a config whose limits fit them.
struct GateInit {
  std::vector<std::string> runs;  // recorded runs or snapshots
  std::string trace;              // of a single snapshot
  std::string output;             // the config's file; empty: standard output
  std::optional<uint64_t> prompt_tokens;
  SnapshotOptions reading;
  bool force = false;
};

// Runs `kvtool gate --init`: writes the config to its output.
ExitStatus RunGateInit(const GateInit& init, Context& context);

// Returns the config that RunGateInit would write of one run, ready to judge that very run: a limit
// that only repeats a fault of the run is 0 instead. `name` names the cases, `inputs` stay open for
// the judgement. Throws what RunGateInit throws.
gate::Config FitConfig(const GateInit& init, const std::string& name, GateInputs& inputs,
                       Context& context);

}  // namespace kv
