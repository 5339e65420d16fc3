// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Records queries and probabilities of a run while the engine computes them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/capture-llama/attention_nodes.h"
#include "apps/capture-llama/engine.h"
#include "apps/capture-llama/plan.h"
#include "apps/capture-llama/run_folder.h"
#include "apps/capture-llama/tensor_file.h"

namespace kv::capture {

// The attention rule in a layer's graph.
struct LayerRule {
  double scale = 0, softcap = 0;
  int64_t window = 0;  // 0: no window, or none shorter than this run
  std::optional<RotaryNode> rotary;
  std::vector<float> rotary_factors;
};

// Writes the queries of every layer (and, on request, probabilities) to files of the run as the
// engine computes them; holds only one batch of one layer in memory.
class Recorder : public Observer {
 public:
  struct Options {
    bool half = false;           // true: queries and probabilities are stored as f16
    bool probabilities = false;  // needs an engine without flash attention
    int32_t tokens = 0;          // tokens of the whole run; used for probabilities only
  };
  Recorder(const RunFolder& folder, const Options& options) : folder_(folder), options_(options) {}

  void Begin(int32_t begin, int32_t count) override;
  bool Wants(ggml_tensor* node) override;
  void Computed(ggml_tensor* node) override;
  void End() override;  // throws if some layer gave no queries, or too few

  // Completes the files.
  void Complete();

  // Returns the recorded geometry. All layers have the same heads.
  Geometry geometry() const { return geometry_; }
  bool flash() const { return flash_; }
  const std::map<int32_t, LayerRule>& rules() const { return rules_; }

 private:
  void SeeRule(const SoftmaxNode& softmax);
  void AppendQueries(const ScoreNode& scores);
  void WriteProbabilities(const ggml_tensor* node, int32_t layer);
  const char* type_name() const { return options_.half ? "F16" : "F32"; }
  // Returns values as the file stores them. Throws Failure(kUnsupported) for values that f16 cannot
  // hold.
  std::span<const std::byte> Stored(std::span<const float> values, int32_t layer);

  const RunFolder& folder_;
  Options options_;
  Geometry geometry_;
  bool flash_ = false;
  const ggml_tensor* checked_mask_ = nullptr;  // mask of the current batch
  int64_t checked_window_ = 0;
  std::map<int32_t, LayerRule> rules_;
  std::map<int32_t, RowFile> queries_;
  std::map<int32_t, PlacedTensor> probabilities_;
  std::vector<uint8_t> raw_;
  std::vector<float> values_;
  std::vector<uint16_t> halves_;
};

}  // namespace kv::capture
