// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/documents/document_fields.h"
#include "lib/engines/infinilm/compressor.h"
#include "lib/engines/infinilm/quality.h"

namespace kv {

// The words for the plan of `replay-mlp` and the cost of the step.

struct MlpParams {
  StepSettings settings;
  std::optional<std::string> dtype, trace;
  std::string weights_dtype, weights_cast, compat, positions;
  bool dry_run = false;
};

struct StepTiming {
  uint64_t step_us = 0;
  double gflops = 0;
  int threads = 0;
};

struct WrittenCache {
  std::string path, format;
};

struct MlpResult {
  std::vector<HashedFile> inputs;
  MlpParams params;
  StepPlan plan;
  std::optional<CsrcOutcome> csrc;
  std::optional<StepTiming> timing;
  std::optional<StepQuality> quality;
  std::optional<WrittenCache> output;
  std::vector<std::string> warnings;
};
const Fields<MlpResult>& MlpResultFields();

std::string PlanText(const StepPlan& plan);

// Returns "compresses to 5 tokens", "returns 20 and has overwritten layers 0-3: ...".
std::string CsrcText(const CsrcOutcome& outcome);

std::string QualityText(const StepQuality& quality);

}  // namespace kv
