// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "apps/capture-llama/engine.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/recorder.h"
#include "apps/capture-llama/tensor_file.h"

// What a run says of itself, in run.json and in the trace.
namespace kv::capture {

struct RunFacts {
  std::string model_file, build;
  bool hash = true;
  int32_t tokens = 0, prompt_tokens = 0;
  double nll = 0;  // NaN where nothing was decoded
  bool has_logits = false, has_sensitivity = false;
};

std::string RunJson(const Model& model, const Recorder& recorder, const RunFacts& facts);
Metadata TraceMetadata(const Model& model, const Recorder& recorder, const RunFacts& facts);

// XXH3 of a file, 64 bits, in hexadecimal; "" where the program was built without xxHash.
std::string HashOf(const std::string& path);

}  // namespace kv::capture
