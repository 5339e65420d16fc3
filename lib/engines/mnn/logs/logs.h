// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "lib/engines/mnn/logs/case.h"
#include "lib/study/gate/result.h"

namespace kv::mnn::logs {

// Judges what the real engine wrote: reproduces its own numbers and verdict, and sets beside them
// what the same logs really say.

struct EngineVerdict {
  std::string path;          // as reports print it
  bool engine_pass = false;  // the engine's own verdict on the whole suite
  gate::Status status = gate::Status::kNotRun;
  std::vector<gate::CaseResult> cases;    // without the engine of their specs
  std::vector<std::string> absent_cases;  // the suite's cases of which there was nothing to judge
  BaselineNoise baseline_noise;           // of the runtime cases
  std::vector<std::string> notes = {};
};

// Throws kOpenFailed, kBadText, kLimit, kMissingRecord (nothing to judge), kUsage (options).
EngineVerdict AnalyzeEngineLogs(const EngineLogsInput& input);

}  // namespace kv::mnn::logs
