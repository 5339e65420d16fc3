// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/timeline.h"

namespace kv::eviction {

// What a rule for choosing tokens needs from a trace.
struct PolicyInfo {
  std::string_view name;
  std::string_view summary;
  bool needs_rows;     // attention rows; else lengths, positions or keys suffice
  bool at_prompt_end;  // the paper compresses once, when the prompt is over; else at every step
};
std::span<const PolicyInfo> Policies();
const PolicyInfo* FindPolicy(std::string_view name);

enum class Granularity { kLayer, kKvHead };

// The parameters of the papers, with the papers' values.
struct PaperParameters {
  uint64_t window = 64;        // snapkv, pyramid: last rows, which look and stay
  uint64_t kernel = 5;         // snapkv, pyramid: keys pooled to one score, odd
  uint64_t pyramid_beta = 20;  // mean budget over the last layer's
  uint64_t sinks = 4;          // streaming
  double heavy_share = 0.5;    // h2o: of the budget; the rest is recent
  bool grow = false;           // snapkv, pyramid: after the prompt's end nothing goes any more

  bool operator==(const PaperParameters&) const = default;
};

struct PolicyOptions {
  BlockConfig config;  // of rule "block"; sanitised
  PaperParameters paper;
  WeightRule weights = WeightRule::kSoftmax;
  Granularity granularity = Granularity::kLayer;  // of rule "block"
  uint64_t seed = 0;                              // of "random"
  // On a budget: what goes leaves at the end of each step, from the prompt's end on, so that
  // "block" scores the prompt's rows too and "snapkv" scores once.
  bool on_budget = false;
};

// Where a layer stands in the model, for rules that spread a budget over layers.
struct LayerPlace {
  bool in_range = true;           // whether it evicts at all
  uint32_t index = 0, count = 1;  // among the layers that do
};

}  // namespace kv::eviction
