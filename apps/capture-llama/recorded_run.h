// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/capture-llama/plan.h"

namespace kv::capture {

// What of a recorded run is repeated.
struct RecordedRun {
  std::string model_file;  // "" if the run does not say
  std::string trace;       // folder
  int32_t prompt = 0;
  Geometry geometry;
  std::vector<int32_t> tokens;  // more than those of the prompt
};

// Reads a folder with run.json (kvtool.run/1). Throws Failure.
RecordedRun ReadRun(const std::string& folder);

}  // namespace kv::capture
