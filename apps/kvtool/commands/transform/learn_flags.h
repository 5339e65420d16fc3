// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/transform/transform.h"

namespace kv {

// The options of `train --transform`, and the learning itself.
struct LearnFlags {
  std::string kind, ratios = "4,8,16", basis = "f32", grouping = "all";
  uint64_t rank = 0;
  uint32_t sinks = 4, window = 128;
  double hold = 0.2;
  RopeOptions rope;

  void Declare(CommandLine& line);
  bool wanted() const { return !kind.empty(); }
  // Learns from all inputs except the last ones (the share of --hold), which judge the result.
  Transform Learn(const std::vector<std::string>& inputs, const SnapshotOptions& snapshots,
                  const std::string& name, Context& context) const;
};

}  // namespace kv
