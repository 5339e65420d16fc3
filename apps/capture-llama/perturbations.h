// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <random>
#include <span>
#include <string>
#include <vector>

#include "apps/capture-llama/engine.h"
#include "apps/capture-llama/plan.h"

// Changes to what the engine computes, made in its graph.
namespace kv::capture {

// Hides evicted positions: writes -inf into the scores that the softmax will read, so that any plan
// can be applied, even if it differs by layer and head. Flash attention has no such scores.
class Evictor : public Observer {
 public:
  // The plan must outlive the object.
  explicit Evictor(const Evictions& plan) : plan_(plan) {}

  void Begin(int32_t begin, int32_t count) override;
  bool Wants(ggml_tensor* node) override;
  void Computed(ggml_tensor* node) override;

 private:
  const Evictions& plan_;
  const ggml_tensor* checked_mask_ = nullptr;
  std::vector<float> hidden_;
};

// Adds noise to the attention output of one layer: each row from `first` on moves by `size` times
// its own length, all heads together, in a random direction.
class Noise : public Observer {
 public:
  Noise(int32_t layer, int32_t first, double size)
      : layer_(layer), first_(first), size_(size), random_(static_cast<uint64_t>(layer) + 1) {}

  bool Wants(ggml_tensor* node) override;
  void Computed(ggml_tensor* node) override;

 private:
  void Move(std::vector<float>& row);

  int32_t layer_, first_;
  double size_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

// Returns for each layer the mean KL of the rows after the prompt when noise is added, as JSON
// (kvtool.sensitivity/1). The context holds the run's prompt.
std::string SensitivityJson(const Model& model, Context& context,
                            std::span<const llama_token> tokens, int32_t prompt_tokens,
                            int32_t layers, double noise);

}  // namespace kv::capture
