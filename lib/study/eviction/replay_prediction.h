// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/study/eviction/replay.h"

namespace kv::eviction {

// Predicts in nats what the runs of one replay cost, while their layers are measured one by one.
class Prediction {
 public:
  // Throws kTraceMismatch for sensitivities of layers that the snapshot lacks.
  Prediction(const Snapshot& snapshot, const AttentionTrace& trace, const ReplayRequest& request);

  std::optional<KlMethod> method() const { return method_; }
  // Begins a layer. Returns whether its changes of log p must be measured.
  bool Begin(const LayerAttention& attention);
  // Takes over the changes that one run makes in this layer: kept for each head, layer and run they
  // would fill memory.
  void Take(size_t run, LayerQuality& quality);
  // Stores the prediction of a run whose layers are all measured. Returns why there is none.
  std::optional<std::string> Finish(size_t index, const MeasuredRows& measured,
                                    ReplayRun& run) const;

 private:
  std::optional<std::string> WhyNot(const ReplayRun& run) const;

  const AttentionTrace& trace_;
  const ReplayRequest& request_;
  std::optional<KlMethod> method_;
  std::set<uint32_t> counted_;       // layers whose losses count
  std::vector<LogPChange> changes_;  // of all layers so far, by run
};

// Says how predictions are to be read; empty if there is none.
std::string PredictionText(const ReplayResult& result);

}  // namespace kv::eviction
