// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/engines/mnn/logs/case.h"
#include "lib/study/gate/result.h"

namespace kv::mnn::logs {

// Judges the output of the real engine: reproduces its own numbers and verdict, and adds the true
// figures of the same logs.

struct EngineVerdict {
  std::string path;          // as reports print it
  bool engine_pass = false;  // the engine's own verdict on the whole suite
  gate::Status status = gate::Status::kNotRun;
  std::vector<gate::CaseResult> cases;    // without the engine in their specs
  std::vector<std::string> absent_cases;  // cases of the suite without anything to judge
  BaselineNoise baseline_noise;           // of the runtime cases
  std::vector<std::string> notes = {};
};

// Throws kOpenFailed, kBadText, kLimit, kMissingRecord (nothing to judge), kUsage (options).
EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input);

}  // namespace kv::mnn::logs
