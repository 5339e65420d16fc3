// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/weights/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/checked.h"

namespace kv {
namespace {

std::string Which(const LayerKv& layer, char which) {
  return fmt::format("layer {} {}", layer.index, which);
}

// One MLP against the tensor it will be applied to.
void CheckMlp(const CompressorWeights& weights, uint32_t layer, MlpRole role,
              const KvTensor& tensor, const StepPlan& plan) {
  const LinearBlock* blocks = weights.Mlp(layer, role);
  const std::string name =
      fmt::format("layer {} {}", layer, kMlpPrefixes[static_cast<size_t>(role)]);
  if (blocks == nullptr) {
    throw Error(Finding::kMissingRecord, fmt::format("the weights have no {}", name));
  }
  const uint64_t in = uint64_t{plan.factor} * tensor.head_dim;
  if (blocks[0].cols() != in) {
    throw Error(Finding::kInconsistent,
                fmt::format("{} takes {} values, but {} tokens of head dim {} are {}", name,
                            blocks[0].cols(), plan.factor, tensor.head_dim, in))
        .Hint("the compression factor of weights cannot be changed after training");
  }
  for (uint32_t slot = 1; slot < kSlotsPerMlp; ++slot) {
    if (blocks[slot].cols() != blocks[slot - 1].rows()) {
      throw Error(Finding::kInconsistent,
                  fmt::format("{}: block {} takes {} values, block {} gives {}", name, slot,
                              blocks[slot].cols(), slot - 1, blocks[slot - 1].rows()));
    }
  }
  if (blocks[2].rows() != tensor.head_dim) {
    throw Error(Finding::kInconsistent,
                fmt::format("{} gives {} values, but the head dim of the cache is {}", name,
                            blocks[2].rows(), tensor.head_dim));
  }
}

void CheckTensor(const KvTensor& tensor, HadamardState hadamard) {
  if (tensor.tokens() == 0) throw Error(Finding::kInconsistent, "there are no tokens");
  const DTypeInfo& info = Info(tensor.dtype);
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
    throw Error(Finding::kUnsupportedDtype,
                fmt::format("the step is not defined for {} caches", info.name))
        .Hint("--dtype f16 (or f32, bf16) converts the cache first");
  }
  if (hadamard == HadamardState::kYes) {
    throw Error(Finding::kUnsupportedKind,
                "the values are Hadamard-rotated, which no compressor was trained on")
        .Hint("dump the cache unrotated, for example from an f16 cache");
  }
}

// The tensors of one layer against each other and against the weights.
void CheckLayer(const Snapshot& snapshot, const LayerKv& layer, const CompressorWeights& weights,
                const StepSettings& settings, const StepPlan& plan) {
  if (!layer.v)
    throw Error(Finding::kUnsupportedKind, "there is no V to compress").In(Which(layer, 'V'));
  const struct {
    const KvTensor& tensor;
    char which;
    HadamardState hadamard;
    MlpRole text, image;
  } sides[] = {
      {layer.k, 'K', snapshot.k_hadamard, MlpRole::kTextK, MlpRole::kImageK},
      {*layer.v, 'V', snapshot.v_hadamard, MlpRole::kTextV, MlpRole::kImageV},
  };
  for (const auto& side : sides) {
    try {
      CheckTensor(side.tensor, side.hadamard);
      const uint64_t tokens = side.tensor.tokens();
      if (std::min(tokens, settings.seq_len.value_or(tokens)) != plan.tokens) {
        throw Error(Finding::kInconsistent,
                    fmt::format("{} tokens, where layer {} K has {}: the step needs one length",
                                tokens, snapshot.layers.front().index, plan.tokens));
      }
      CheckMlp(weights, layer.index, side.text, side.tensor, plan);
      if (!weights.is_text_only()) CheckMlp(weights, layer.index, side.image, side.tensor, plan);
    } catch (Error& error) {
      throw error.In(Which(layer, side.which));
    }
  }
}

Segment MakeSegment(uint64_t begin, uint64_t tokens, const StepPlan& plan, MlpRole k, MlpRole v,
                    bool has_weights) {
  Segment segment{begin, tokens, 0, k, v, RawReason::kNone};
  if (tokens == 0) return segment;
  if (has_weights) segment.groups = GroupsOf(tokens, plan.factor, plan.min_seq_len);
  if (segment.groups == 0) {
    segment.raw_reason = has_weights ? RawReason::kFewGroups : RawReason::kNoImageWeights;
  }
  return segment;
}

void AddCosts(const Snapshot& snapshot, const CompressorWeights& weights, StepPlan& plan) {
  for (const LayerKv& layer : snapshot.layers) {
    for (const bool is_value : {false, true}) {
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      plan.bytes_before += plan.tokens * tensor.row_bytes();
      plan.bytes_after += plan.new_length * tensor.row_bytes();
      for (const Segment& segment : plan.segments()) {
        if (segment.groups == 0) continue;
        const LinearBlock* blocks =
            weights.Mlp(layer.index, is_value ? segment.v_role : segment.k_role);
        for (uint32_t slot = 0; slot < kSlotsPerMlp; ++slot) {
          plan.flop +=
              2 * blocks[slot].rows() * blocks[slot].cols() * segment.groups * tensor.heads;
        }
      }
    }
  }
}

}  // namespace

std::vector<TokenRange> StepPlan::Sources() const {
  std::vector<TokenRange> sources;
  sources.reserve(new_length);
  for (const Segment& segment : segments()) {
    const uint64_t end = segment.begin + segment.tokens;
    uint64_t at = segment.begin;
    for (uint64_t g = 0; g < segment.groups; ++g, at += factor)
      sources.push_back({at, at + factor});
    for (; at < end; ++at) sources.push_back({at, at + 1});
  }
  return sources;
}

uint64_t GroupsOf(uint64_t tokens, uint32_t factor, uint64_t min_groups) {
  const uint64_t groups = tokens / factor;
  return groups < min_groups ? 0 : groups;
}

uint64_t CompressedLength(uint64_t tokens, uint32_t factor, uint64_t min_groups) {
  const uint64_t groups = GroupsOf(tokens, factor, min_groups);
  return tokens - groups * (factor - 1);
}

StepPlan PlanStep(const Snapshot& snapshot, const CompressorWeights& weights,
                  const StepSettings& settings) {
  RequireHeads(snapshot, "the compression step");
  if (snapshot.layers.empty()) throw Error(Finding::kInconsistent, "the snapshot has no layers");
  StepPlan plan;
  plan.factor_from_weights = settings.factor <= 1;
  plan.factor = plan.factor_from_weights ? weights.header.compression_factor : settings.factor;
  plan.min_seq_len_from_weights = settings.min_seq_len == 0;
  plan.min_seq_len =
      plan.min_seq_len_from_weights ? weights.header.min_seq_len : settings.min_seq_len;
  if (plan.factor <= 1) {
    throw Error(
        Finding::kInconsistent,
        fmt::format("the weights' compression factor is {}: nothing to compress", plan.factor))
        .Hint("give --compression-factor");
  }
  if (!weights.Has(MlpRole::kTextK) || !weights.Has(MlpRole::kTextV)) {
    throw Error(Finding::kMissingRecord, "the weights have no MLPs for text");
  }
  const uint64_t stored = snapshot.layers.front().k.tokens();
  plan.tokens = std::min(stored, settings.seq_len.value_or(stored));
  plan.image_len = std::min(settings.image_len, plan.tokens);
  plan.layers = snapshot.layers.size();
  for (const LayerKv& layer : snapshot.layers) {
    if (layer.index >= weights.header.num_layers) {
      throw Error(Finding::kInconsistent,
                  fmt::format("the weights have {} layers, the cache has a layer {}",
                              weights.header.num_layers, layer.index));
    }
    CheckLayer(snapshot, layer, weights, settings, plan);
  }
  plan.image = MakeSegment(0, plan.image_len, plan, MlpRole::kImageK, MlpRole::kImageV,
                           !weights.is_text_only());
  plan.text = MakeSegment(plan.image_len, plan.tokens - plan.image_len, plan, MlpRole::kTextK,
                          MlpRole::kTextV, true);
  plan.new_length = plan.image.new_length(plan.factor) + plan.text.new_length(plan.factor);
  AddCosts(snapshot, weights, plan);
  return plan;
}

}  // namespace kv
