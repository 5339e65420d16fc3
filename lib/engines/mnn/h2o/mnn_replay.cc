// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/mnn_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/core/base/error.h"

namespace kv::mnn::h2o {
namespace {

constexpr uint64_t kWorthThreads = uint64_t{4} << 20;  // multiplications

class FromTrace : public BlockSumSource {
 public:
  FromTrace(std::span<const LayerAttention> layers, std::span<const uint32_t> places,
            uint64_t block_tokens, WeightRule weights, ThreadPool& pool)
      : block_tokens_(block_tokens), weights_(weights), pool_(pool) {
    KV_ASSERT(layers.size() == places.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      Layer layer{&layers[i], places[i], {}};
      for (uint32_t h = 0; h < layers[i].kv_heads(); ++h) layer.keys.emplace_back(layers[i], h);
      layers_.push_back(std::move(layer));
    }
  }

  std::optional<std::vector<float>> Sums(const CallStart& start, uint64_t blocks,
                                         uint64_t position) override {
    if (!start.in_range) return std::vector<float>();
    std::vector<float> sums(blocks);
    for (Layer& layer : layers_) {
      if (layer.place != start.layer) continue;
      for (KeptKeys& keys : layer.keys) {
        if (keys.size() == 0) keys.AppendUpTo(position);  // the prompt
        if (start.plan_applied) keys.Compact(start.applied);
        keys.AppendUpTo(position + 1);
        KV_ASSERT(keys.size() == start.length);
      }
      AddSums(layer, position, sums);
    }
    return sums;
  }

  bool knows(uint32_t layer) const override {
    return std::any_of(layers_.begin(), layers_.end(),
                       [&](const Layer& known) { return known.place == layer; });
  }

 private:
  struct Layer {
    const LayerAttention* attention;
    uint32_t place;
    std::vector<KeptKeys> keys;
  };

  // Weights of the heads in parallel, sums in the order of one engine thread: head by head.
  void AddSums(const Layer& layer, uint64_t position, std::vector<float>& sums) {
    const uint32_t heads = layer.attention->query_heads(), group = layer.attention->group();
    const size_t n = layer.keys.front().size();
    rows_.resize(heads * n);
    const auto add_head = [&](uint64_t head) {
      RowScratch scratch;
      float* row = &rows_[head * n];
      const size_t seen = RowLogits(*layer.attention, static_cast<uint32_t>(head), position,
                                    layer.keys[head / group], scratch, row);
      KV_ASSERT(seen == n);
      WeighRow(row, n, weights_);
    };
    // Waking threads at every step costs more than a small model's row.
    if (heads * n * layer.attention->head_dim() < kWorthThreads) {
      for (uint32_t head = 0; head < heads; ++head) add_head(head);
    } else {
      pool_.ParallelFor(heads, add_head);
    }
    for (uint32_t head = 0; head < heads; ++head) {
      AddInOrder(&rows_[head * n], n, block_tokens_, sums.data());
    }
  }

  uint64_t block_tokens_;
  WeightRule weights_;
  ThreadPool& pool_;
  std::vector<Layer> layers_;
  std::vector<float> rows_;
};

class FromStream : public BlockSumSource {
 public:
  FromStream(std::unique_ptr<BlockScoreReader> reader, uint32_t layers, uint64_t prompt)
      : reader_(std::move(reader)), layers_(layers), prompt_(prompt), next_(reader_->Next()) {}

  std::optional<std::vector<float>> Sums(const CallStart& start, uint64_t blocks,
                                         uint64_t position) override {
    if (!next_ && start.layer == 0) return std::nullopt;
    const uint64_t step = position - prompt_ + 1;
    const bool is_this = next_ && next_->step == step && next_->layer == start.layer;
    if (!is_this) {
      if (next_ && (next_->step < step || (next_->step == step && next_->layer < start.layer) ||
                    next_->layer >= layers_)) {
        throw Differs(fmt::format("step {} layer {} comes when step {} layer {} is due",
                                  next_->step, next_->layer, step, start.layer));
      }
      if (!start.in_range) return std::vector<float>();
      if (!next_) {
        throw Error(
            Finding::kTraceMismatch,
            fmt::format("the stream ends inside step {}: layer {} is missing", step, start.layer));
      }
      throw Differs(fmt::format("step {} layer {} is missing: the parameters evict there", step,
                                start.layer));
    }
    if (next_->block_sums.size() != blocks) {
      throw Differs(fmt::format("{} block sums, but the replayed cache of {} tokens has {} blocks",
                                next_->block_sums.size(), start.length, blocks))
          .Hint("a stream fits the parameters it was recorded with");
    }
    std::vector<float> sums = std::move(next_->block_sums);
    next_ = reader_->Next();
    return sums;
  }

  bool knows(uint32_t /*layer*/) const override { return true; }

 private:
  Error Differs(std::string message) const {
    return Error(Finding::kTraceMismatch, std::move(message))
        .In(fmt::format("line {}", next_->line));
  }

  std::unique_ptr<BlockScoreReader> reader_;
  uint32_t layers_;
  uint64_t prompt_;
  std::optional<BlockScoreCall> next_;
};

}  // namespace

std::unique_ptr<BlockSumSource> TraceBlockSums(std::span<const LayerAttention> layers,
                                               std::span<const uint32_t> places,
                                               uint64_t block_tokens, WeightRule weights,
                                               ThreadPool& pool) {
  return std::make_unique<FromTrace>(layers, places, block_tokens, weights, pool);
}

std::unique_ptr<BlockSumSource> StreamBlockSums(std::unique_ptr<BlockScoreReader> reader,
                                                uint32_t layers, uint64_t prompt) {
  return std::make_unique<FromStream>(std::move(reader), layers, prompt);
}

MnnReplay ReplayMnn(const eviction::BlockConfig& config, const MnnGeometry& geometry,
                    MnnRevision revision, uint64_t prompt, uint64_t end, BlockSumSource& source) {
  MnnEngine engine(config, geometry, revision, prompt);
  MnnReplay replay;
  const eviction::LayerRange range = eviction::EvictedLayers(engine.config(), geometry.layers);
  std::vector<KeepPlan> held(geometry.layers);
  for (uint32_t l = 0; l < geometry.layers; ++l) {
    replay.schedules.push_back({l, range.Contains(l), {}, 0, 0});
    replay.plans.emplace_back().layer = l;
    Append(held[l], {0, static_cast<uint32_t>(prompt)});
  }
  for (uint64_t token = prompt; token < end; ++token) {
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      MnnCall call;
      call.token = token;
      call.start = engine.Begin();
      if (call.start.plan_applied) held[l] = Select(held[l], call.start.applied);
      Append(held[l], {static_cast<uint32_t>(token), 1});
      const auto sums = source.Sums(call.start, engine.blocks(call.start.length), token);
      if (!sums) return replay;  // a stream ended: the step did not happen
      call.end = engine.Finish(*sums);
      call.end.ema_scores.clear();
      replay.plans_dropped += call.start.plan_dropped;
      eviction::LayerSchedule& schedule = replay.schedules[l];
      const eviction::BlockChoice& decision = call.end.decision;
      const bool is_known = source.knows(l);
      schedule.triggers += call.end.triggered && is_known;
      replay.floor_decisions += call.end.triggered && decision.budget.floor_dominates;
      schedule.floor_dominated += call.end.triggered && is_known &&
                                  decision.budget.floor_dominates &&
                                  revision == MnnRevision::kFinal;
      if (!decision.plan.empty() && is_known) {
        const eviction::Eviction eviction{token, call.start.length, decision.kept};
        call.planned = Select(held[l], decision.plan);
        schedule.evictions.push_back(eviction);
        replay.plans[l].Keep(eviction, {&call.planned, 1});
      }
      call.metrics = engine.metrics();
      if (call.end.triggered || call.start.plan_applied || call.start.plan_dropped) {
        replay.calls.push_back(std::move(call));
      }
    }
    uint64_t allocated = 0;
    replay.capacities.resize(geometry.layers);
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      replay.capacities[l] = std::max(engine.capacity(l), source.knows(l) ? 0 : token + 1);
      allocated += replay.capacities[l];
    }
    replay.allocated_tokens.push_back(allocated);
    replay.metrics = engine.metrics();
    replay.reported_ratio = replay.metrics.lossy_ratio;
    replay.meta_previous = engine.meta_previous();
  }
  return replay;
}

}  // namespace kv::mnn::h2o
