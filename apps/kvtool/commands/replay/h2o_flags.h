// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/kvtool/line/command_line.h"
#include "formats/trace/trace.h"
#include "lib/study/eviction/policy.h"

// The flags of replay-h2o that set a rule's parameters.
namespace kv {

// The parameters of the engine, under the names its scripts use.
struct H2oFlags {
  std::vector<std::pair<std::string, double>> given;  // meta name, value
  std::string target_mode;

  void Declare(CommandLine& line);
  // `config` has the values of what is neither given nor recorded in the trace.
  eviction::BlockConfig Resolve(const AttentionTrace& trace, eviction::BlockConfig config) const;
  // The names that were given, as BlockConfig has them.
  std::set<std::string, std::less<>> Chosen() const;
};

// The parameters of the papers' rules.
struct PaperFlags {
  eviction::PaperParameters paper;
  std::string after_prompt = "grow";

  void Declare(CommandLine& line);
  eviction::PaperParameters Resolve() const;
};

}  // namespace kv
