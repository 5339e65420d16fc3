// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/line/options.h"

namespace kv {

// `kvtool gate --init`: measures runs, and writes a config whose limits fit them.
struct GateInit {
  std::vector<std::string> runs;  // recorded runs or snapshots
  std::string trace;              // of a single snapshot
  std::string output;             // empty: standard output
  std::optional<uint64_t> prompt_tokens;
  SnapshotOptions reading;
  bool force = false;
};

ExitStatus RunGateInit(const GateInit& init, Context& context);

}  // namespace kv
