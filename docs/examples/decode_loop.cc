// SPDX-License-Identifier: Apache-2.0
// Evicts inside a decode loop with MNN's decisions. The cache is the engine's own; here it has
// random keys.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "kvtool_study.hpp"

namespace {

constexpr uint32_t kLayers = 4, kQueryHeads = 4, kKvHeads = 2, kDim = 32;
constexpr uint64_t kPrompt = 2000, kDecoded = 100;

// An engine's cache of one layer: rows of keys, [token][kv head][dim].
class LayerCache {
 public:
  size_t tokens() const { return keys_.size() / kRow; }
  const float* keys() const { return keys_.data(); }

  void Append(std::mt19937& random, uint64_t tokens) {
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < tokens * kRow; ++i) keys_.push_back(normal(random));
  }
  void Compact(const kvt_plan& plan) {
    size_t to = 0;
    for (size_t i = 0; i < plan.count; ++i) {
      const auto from = keys_.begin() + static_cast<std::ptrdiff_t>(plan.ranges[i].begin * kRow);
      const auto count = static_cast<std::ptrdiff_t>(plan.ranges[i].count * kRow);
      std::copy(from, from + count, keys_.begin() + static_cast<std::ptrdiff_t>(to));
      to += plan.ranges[i].count * kRow;
    }
    keys_.resize(to);
  }

 private:
  static constexpr size_t kRow = size_t{kKvHeads} * kDim;
  std::vector<float> keys_;
};

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const kvt_geometry geometry = {sizeof geometry, kLayers, kQueryHeads, kKvHeads, kDim, 4};
  kvt_h2o_params params = kvtool::H2o::Defaults();
  params.prompt_tokens = kPrompt;
  kvtool::Context context;
  kvtool::H2o h2o(context, params, geometry);
  std::vector<LayerCache> cache(kLayers);
  for (LayerCache& layer : cache) layer.Append(random, kPrompt);

  uint64_t evictions = 0;
  for (uint64_t token = 0; token < kDecoded; ++token) {
    for (LayerCache& layer : cache) {
      const kvt_h2o_call begin = h2o.Begin(1);
      if (begin.apply != 0) {  // decided at this layer's last call and applied now
        layer.Compact(*begin.plan);
        ++evictions;
      }
      layer.Append(random, 1);
      if (layer.tokens() != begin.length) return 1;

      std::vector<float> queries(size_t{kQueryHeads} * kDim);
      for (float& value : queries) value = normal(random);
      std::vector<float> sums((layer.tokens() + params.block_tokens - 1) / params.block_tokens);
      kvt_scores scores = {};
      scores.struct_size = sizeof scores;
      scores.key_dtype = KVT_F32;
      scores.geometry = &geometry;
      scores.queries = queries.data();
      scores.rows = 1;
      scores.keys = layer.keys();
      scores.tokens = scores.visible = layer.tokens();
      scores.key_token_stride = size_t{kKvHeads} * kDim * sizeof(float);
      scores.key_head_stride = kDim * sizeof(float);
      scores.block_tokens = params.block_tokens;
      kvtool::BlockScores(context, scores, sums);
      h2o.Finish(sums, 1);
    }
  }
  std::printf("%llu tokens each, %llu evictions; the last layer holds %zu\n",
              static_cast<unsigned long long>(kPrompt + kDecoded),
              static_cast<unsigned long long>(evictions), cache.back().tokens());
  return evictions > 0 ? 0 : 1;
}
