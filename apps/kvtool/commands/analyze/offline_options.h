// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>

#include "apps/kvtool/line/command_line.h"
#include "lib/engines/mnn/offline/offline.h"

namespace kv {

// The options of MNN's offline experiment, under the names its script has.
struct OfflineOptions {
  std::string codec, json_out, md_out;
  std::string stage = "both", scope = "front_n", entry_mode = "per_meta", layer_ids;
  std::string predictors[mnn::offline::kStreams];
  mnn::offline::Options values;

  void Declare(CommandLine& line);
  // Nothing unless --offline-codec was given. Throws kUsage.
  std::optional<mnn::offline::Options> Resolve() const;
};

}  // namespace kv
