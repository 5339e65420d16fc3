// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by capture.cc, confirm.cc, sensitivity.cc

#include <span>
#include <string>
#include <vector>

#include "apps/capture-llama/engine.h"
#include "apps/capture-llama/options.h"

namespace kv::capture {

// Records a run.
void Capture(const Options& options);

// Repeats a run with plans applied, or with a cache of other types.
void Confirm(const Options& options);

// Log probabilities of the rows from `first` on, in one piece.
class Distributions {
 public:
  Distributions(int32_t first, int32_t words) : first_(first), words_(static_cast<size_t>(words)) {}

  void Add(std::span<const float> logits);
  std::span<const float> Row(int32_t position) const;

 private:
  int32_t first_;
  size_t words_;
  std::vector<float> values_;
};

// For each layer the mean KL of the rows after the prompt when noise is added, as JSON
// (kvtool.sensitivity/1). The context holds the run's prompt.
std::string SensitivityJson(const Model& model, Context& context,
                            std::span<const llama_token> tokens, int32_t prompt_tokens,
                            int32_t layers, double noise);

}  // namespace kv::capture
