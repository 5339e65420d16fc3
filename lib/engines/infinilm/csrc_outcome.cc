// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Walks through csrc's checks in their order, layer by layer, without computing any value.
#include <fmt/format.h>

#include <algorithm>

#include "lib/engines/infinilm/compressor.h"

namespace kv {
namespace {

constexpr uint32_t kTextBlocks = 6, kAllBlocks = 12;

// Result of csrc's compress_segment for one segment of a layer, K and V together.
struct SegmentResult {
  bool exists = false;   // false: a null tensor; neither K nor V has a result
  bool changed = false;  // true: the values differ from the old ones
  uint64_t length = 0;
  std::string why;  // reason if there is no result

  uint64_t kept() const { return exists ? length : 0; }
  bool is_lost() const { return !exists && length > 0; }
};

class Simulation {
 public:
  Simulation(const CompressorWeights& weights, const StepSettings& settings, uint64_t tokens)
      : weights_(weights), tokens_(tokens) {
    const WeightsHeader& header = weights.header;
    factor_ = settings.factor <= 1 ? header.compression_factor : settings.factor;
    min_groups_ = settings.min_seq_len == 0 ? header.min_seq_len : settings.min_seq_len;
    image_ = std::min(settings.image_len, tokens);
    has_image_ = header.blocks_per_layer >= kAllBlocks;
  }

  CsrcOutcome Run(std::span<const CsrcLayer> layers) {
    outcome_.layers_overwritten.assign(layers.size(), false);
    outcome_.returned_length = tokens_;
    if (tokens_ == 0) return Nothing("the cache has no tokens");
    if (factor_ <= 1) return Nothing(fmt::format("the effective factor is {}", factor_));
    if (weights_.header.blocks_per_layer < kTextBlocks) {
      return Nothing(fmt::format("layers have {} blocks, fewer than the six of the text MLPs",
                                 weights_.header.blocks_per_layer));
    }
    std::optional<uint64_t> new_length;
    for (size_t l = 0; l < layers.size(); ++l) {
      if (!RunLayer(static_cast<uint32_t>(l), layers[l], new_length)) return outcome_;
    }
    outcome_.returned_length = new_length.value_or(tokens_);
    CheckOrder();
    return outcome_;
  }

 private:
  CsrcOutcome Nothing(std::string reason) {
    outcome_.effect = CsrcEffect::kNothing;
    outcome_.reason = std::move(reason);
    return outcome_;
  }

  // Gives up at this layer; what was written before stays.
  bool Stop(std::string reason) {
    const auto& written = outcome_.layers_overwritten;
    const bool any = std::find(written.begin(), written.end(), true) != written.end();
    outcome_.effect = any ? CsrcEffect::kHalfWritten : CsrcEffect::kNothing;
    outcome_.reason = std::move(reason);
    return false;
  }

  bool Throw(std::string reason) {
    outcome_.effect = CsrcEffect::kThrows;
    outcome_.returned_length = 0;
    outcome_.reason = std::move(reason);
    return false;
  }

  // Returns why the MLP whose first block is `base` yields nothing for this layer; "" if it runs.
  std::string WhyNoResult(uint32_t layer, uint32_t base, uint32_t head_dim) const {
    if (layer >= weights_.header.num_layers) {
      return fmt::format("the file has {} layers, so layer {} of the cache has no MLPs",
                         weights_.header.num_layers, layer);
    }
    const LinearBlock& first = weights_.Block(layer, base);
    const LinearBlock& second = weights_.Block(layer, base + 1);
    const LinearBlock& third = weights_.Block(layer, base + 2);
    if (first.cols() != uint64_t{factor_} * head_dim) {
      return fmt::format("the first block of layer {} does not have factor {} x head dim {} inputs",
                         layer, factor_, head_dim);
    }
    if (second.cols() != first.rows() || third.cols() != second.rows()) {
      return fmt::format("the blocks of layer {} do not chain", layer);
    }
    return {};
  }

  // Runs one segment of a layer. Returns false if csrc throws.
  bool RunSegment(uint32_t layer, MlpRole k_role, CsrcLayer dims, uint64_t tokens, bool has_mlp,
                  SegmentResult& result) {
    result.exists = tokens > 0;
    result.length = tokens;
    if (!has_mlp || tokens == 0 || tokens / factor_ < min_groups_) return true;
    const uint64_t groups = tokens / factor_;
    // csrc treats V as if it had K's head size.
    if (dims.v_dim != dims.k_dim && groups > 0) {
      return Throw(fmt::format("layer {} has heads of {} values in K and {} in V", layer,
                               dims.k_dim, dims.v_dim));
    }
    const uint32_t base = kSlotsPerMlp * static_cast<uint32_t>(k_role);
    for (const uint32_t side : {base, base + kSlotsPerMlp}) {
      result.why = WhyNoResult(layer, side, dims.k_dim);
      if (result.why.empty()) continue;
      result.exists = false;
      return true;
    }
    for (const uint32_t side : {base, base + kSlotsPerMlp}) {
      if (groups == 0 || weights_.Block(layer, side + 2).rows() == dims.k_dim) continue;
      return Throw(
          fmt::format("the blocks of layer {} do not give head dim {}", layer, dims.k_dim));
    }
    result.changed = groups > 0;
    result.length = CompressedLength(tokens, factor_, min_groups_);
    return true;
  }

  // Runs one layer. Returns false if csrc ends here.
  bool RunLayer(uint32_t layer, CsrcLayer dims, std::optional<uint64_t>& new_length) {
    SegmentResult image, text;
    if (!RunSegment(layer, MlpRole::kImageK, dims, image_, has_image_, image) ||
        !RunSegment(layer, MlpRole::kTextK, dims, tokens_ - image_, true, text)) {
      return false;
    }
    if (!image.exists && !text.exists) return Stop(image.why.empty() ? text.why : image.why);
    const SegmentResult* const lost = text.is_lost() ? &text : image.is_lost() ? &image : nullptr;
    if (lost != nullptr && outcome_.effect == CsrcEffect::kCompresses) {
      outcome_.effect = CsrcEffect::kLosesTokens;
      outcome_.reason = fmt::format("{}: the {} segment's {} tokens get no result and are left out",
                                    lost->why, lost == &text ? "text" : "image", lost->length);
    }
    const uint64_t length = image.kept() + text.kept();
    if (new_length && *new_length != length) {
      return Stop(fmt::format("layer {} would have {} tokens, layers before it {}", layer, length,
                              *new_length));
    }
    new_length = length;
    // Raw tokens are copied onto themselves, unless a missing image prefix shifts them.
    outcome_.layers_overwritten[layer] =
        (image.exists && image.changed) || (text.exists && (text.changed || image.is_lost()));
    return true;
  }

  // csrc does not know block names: block 0 is compress_tk, whatever was exported there.
  void CheckOrder() {
    if (weights_.names_assumed || outcome_.effect != CsrcEffect::kCompresses) return;
    const size_t used = has_image_ ? kMlpRoles : kMlpRoles / 2;
    for (size_t i = 0; i < std::min(used, weights_.prefixes.size()); ++i) {
      if (weights_.prefixes[i] == kMlpPrefixes[i]) continue;
      outcome_.effect = CsrcEffect::kWrongMlp;
      outcome_.reason =
          fmt::format("{} lies where csrc expects {}, and csrc applies it without checking",
                      weights_.prefixes[i], kMlpPrefixes[i]);
      return;
    }
  }

  const CompressorWeights& weights_;
  uint64_t tokens_, image_ = 0;
  uint32_t factor_ = 0;
  uint64_t min_groups_ = 0;
  bool has_image_ = false;
  CsrcOutcome outcome_;
};

}  // namespace

std::string_view Name(CsrcEffect effect) {
  switch (effect) {
    case CsrcEffect::kCompresses:
      return "compresses";
    case CsrcEffect::kNothing:
      return "nothing";
    case CsrcEffect::kWrongMlp:
      return "wrong_mlp";
    case CsrcEffect::kLosesTokens:
      return "loses_tokens";
    case CsrcEffect::kHalfWritten:
      return "half_written";
    case CsrcEffect::kThrows:
      return "throws";
  }
  return "?";
}

bool CsrcOutcome::corrupts() const {
  return effect != CsrcEffect::kCompresses && effect != CsrcEffect::kNothing;
}

CsrcOutcome SimulateCsrc(const CompressorWeights& weights, std::span<const CsrcLayer> layers,
                         uint64_t cache_tokens, const StepSettings& settings) {
  const uint64_t tokens = std::min(cache_tokens, settings.seq_len.value_or(cache_tokens));
  return Simulation(weights, settings, tokens).Run(layers);
}

CsrcOutcome SimulateCsrc(const CompressorWeights& weights, const Snapshot& snapshot,
                         const StepSettings& settings) {
  std::vector<CsrcLayer> layers;
  for (const LayerKv& layer : snapshot.layers) {
    layers.push_back({layer.k.head_dim, layer.v ? layer.v->head_dim : layer.k.head_dim});
  }
  const uint64_t tokens = snapshot.layers.empty() ? 0 : snapshot.layers.front().k.tokens();
  return SimulateCsrc(weights, layers, tokens, settings);
}

StepPlan PlanNothing(const Snapshot& snapshot, const StepSettings& settings) {
  RequireHeads(snapshot, "the compression step");
  StepPlan plan;
  plan.factor = std::max(1u, settings.factor);
  plan.min_seq_len = settings.min_seq_len;
  for (const LayerKv& layer : snapshot.layers) {
    for (const KvTensor* tensor : {&layer.k, layer.v ? &*layer.v : nullptr}) {
      if (tensor == nullptr) {
        throw Error(Finding::kUnsupportedKind, "there is no V to compress")
            .In(fmt::format("layer {} V", layer.index));
      }
      const uint64_t tokens = std::min(tensor->tokens(), settings.seq_len.value_or(UINT64_MAX));
      if (plan.bytes_before == 0) plan.tokens = tokens;
      if (tokens != plan.tokens) {
        throw Error(Finding::kInconsistent, "layers have different numbers of tokens")
            .In(fmt::format("layer {}", layer.index));
      }
      plan.bytes_before += tokens * tensor->row_bytes();
      plan.bytes_after += tokens * tensor->row_bytes();
    }
  }
  plan.layers = snapshot.layers.size();
  plan.new_length = plan.tokens;
  plan.image_len = std::min(settings.image_len, plan.tokens);
  plan.image = {0, plan.image_len, 0, MlpRole::kImageK, MlpRole::kImageV, RawReason::kNone};
  plan.text = {plan.image_len,  plan.tokens - plan.image_len, 0, MlpRole::kTextK, MlpRole::kTextV,
               RawReason::kNone};
  return plan;
}

}  // namespace kv
