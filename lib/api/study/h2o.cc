// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <vector>

#include "lib/api/context.h"
#include "lib/api/kvtool_study.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"

// MNN's eviction as a C object.
struct kvt_h2o {
  kvt_h2o(kvt_ctx* context, const kv::eviction::BlockConfig& config,
          const kv::mnn::h2o::MnnGeometry& geometry, kv::mnn::h2o::MnnRevision revision,
          uint64_t prompt_tokens)
      : ctx(context), engine(config, geometry, revision, prompt_tokens) {}

  kvt_ctx* const ctx;
  kv::mnn::h2o::MnnEngine engine;
  kv::mnn::h2o::CallStart start;  // the call that runs, or the last one
  std::vector<kvt_range> ranges;  // ranges of `plan`
  kvt_plan plan = {};             // the plan that the last kvt_h2o_call points to
  uint32_t next_layer = 0;
  bool in_call = false;
};

namespace kv::api {
namespace {

using eviction::BlockConfig;

// Makes the plan available to the caller until the next call.
void ExposePlan(kvt_h2o& h2o, const KeepPlan& plan, kvt_h2o_call& call) {
  h2o.ranges.clear();
  for (const auto& range : plan)
    h2o.ranges.push_back({sizeof(kvt_range), range.begin, range.count});
  h2o.plan = {sizeof h2o.plan, 0, h2o.ranges.data(), h2o.ranges.size()};
  call.plan = &h2o.plan;
}

kvt_h2o_call Described(const kvt_h2o& h2o) {
  kvt_h2o_call call = {};
  call.layer = h2o.start.layer;
  call.length = h2o.start.length;
  call.in_range = h2o.start.in_range;
  call.keep_ratio = h2o.engine.metrics().keep_ratio;
  return call;
}

BlockConfig MakeConfig(const kvt_h2o_params& params) {
  Require(params.reserved == 0, "params->reserved");
  Require(params.target_mode <= KVT_H2O_ADAPTIVE, "params->target_mode");
  BlockConfig config;
  config.layer_start = params.layer_start;
  config.layer_end = params.layer_end;
  config.block_tokens = params.block_tokens;
  config.sink_tokens = params.sink_tokens;
  config.recent_tokens = params.recent_tokens;
  config.target_mode = static_cast<eviction::TargetMode>(params.target_mode);
  config.target_keep_ratio = params.target_keep_ratio;
  config.target_lossy_ratio = params.target_lossy_ratio;
  config.ema_alpha = params.ema_alpha;
  config.update_interval = params.update_interval;
  config.trigger_min_tokens = params.trigger_min_tokens;
  return config;
}

constexpr uint64_t kMostTokens = UINT32_MAX / 2;  // indices into a cache have 32 bits

}  // namespace
}  // namespace kv::api

using namespace kv::api;  // NOLINT: the functions below are the library's outermost layer

kvt_status kvt_h2o_defaults(kvt_h2o_params* out) {
  return Caught(nullptr, [&] {
    RequireSize(out, "out->struct_size");
    const kv::eviction::BlockConfig config;
    kvt_h2o_params params = {};
    params.layer_start = static_cast<int32_t>(config.layer_start);
    params.layer_end = static_cast<int32_t>(config.layer_end);
    params.block_tokens = static_cast<uint32_t>(config.block_tokens);
    params.sink_tokens = static_cast<uint32_t>(config.sink_tokens);
    params.recent_tokens = static_cast<uint32_t>(config.recent_tokens);
    params.update_interval = static_cast<uint32_t>(config.update_interval);
    params.trigger_min_tokens = static_cast<uint32_t>(config.trigger_min_tokens);
    params.target_mode = static_cast<uint32_t>(config.target_mode);
    params.target_keep_ratio = config.target_keep_ratio;
    params.target_lossy_ratio = config.target_lossy_ratio;
    params.ema_alpha = config.ema_alpha;
    Fill(out, params);
  });
}

kvt_status kvt_h2o_create(kvt_ctx* ctx, const kvt_h2o_params* params, const kvt_geometry* geometry,
                          kvt_h2o** out) {
  return CallToMake(ctx, out, [&] {
    const kvt_h2o_params given = Whole(params, "params->struct_size");
    const kvt_geometry g = Whole(geometry, "geometry->struct_size");
    constexpr uint32_t kMostLayers = 1 << 16;
    Require(g.layers > 0 && g.layers <= kMostLayers, "geometry->layers");
    Require(given.revision == KVT_H2O_FINAL || given.revision == KVT_H2O_R6, "params->revision");
    Require(given.prompt_tokens <= kMostTokens, "params->prompt_tokens");
    const kv::mnn::h2o::MnnGeometry sizes{g.layers, g.query_heads, g.kv_heads, g.head_dim,
                                          g.element_bytes};
    const auto revision = given.revision == KVT_H2O_FINAL ? kv::mnn::h2o::MnnRevision::kFinal
                                                          : kv::mnn::h2o::MnnRevision::kR6;
    return std::make_unique<kvt_h2o>(ctx, MakeConfig(given), sizes, revision, given.prompt_tokens);
  });
}

void kvt_h2o_free(kvt_h2o* h2o) { delete h2o; }

kvt_status kvt_h2o_begin(kvt_h2o* h2o, uint64_t new_tokens, kvt_h2o_call* call) {
  return CallOn(h2o, [&] {
    RequireSize(call, "call->struct_size");
    Require(!h2o->in_call, "kvt_h2o_begin was called twice without kvt_h2o_finish between");
    const uint32_t layer = h2o->next_layer;
    Require(new_tokens <= kMostTokens && h2o->engine.length(layer) <= kMostTokens,
            "new_tokens: the cache would have 2^31 tokens or more");
    // Reserves before the engine begins: no later step fails, so a failed call can be repeated.
    h2o->ranges.reserve(h2o->engine.pending(layer).size());
    h2o->ctx->state.Commit();
    h2o->next_layer = (h2o->next_layer + 1) % h2o->engine.geometry().layers;
    h2o->start = h2o->engine.Begin(new_tokens);
    h2o->in_call = true;
    kvt_h2o_call begun = Described(*h2o);
    begun.apply = h2o->start.plan_applied;
    ExposePlan(*h2o, h2o->start.applied, begun);
    Fill(call, begun);
  });
}

kvt_status kvt_h2o_finish(kvt_h2o* h2o, const float* block_sums, size_t blocks, uint64_t query_rows,
                          kvt_h2o_call* call) {
  return CallOn(h2o, [&] {
    RequireSize(call, "call->struct_size");
    Require(h2o->in_call, "kvt_h2o_finish without kvt_h2o_begin");
    Require(query_rows <= kMostTokens, "query_rows: 2^31 or more");
    const bool scored = h2o->start.in_range;
    Require(block_sums != nullptr || blocks == 0, "block_sums");
    const size_t wanted = scored ? h2o->engine.blocks(h2o->start.length) : 0;
    if (scored && blocks != wanted) {
      throw kv::Error(kv::Finding::kBadArgument, "blocks: {} sums, the cache has {} blocks", blocks,
                      wanted);
    }
    h2o->ctx->state.Commit();
    const kv::mnn::h2o::CallEnd end = h2o->engine.Finish({block_sums, wanted}, query_rows);
    h2o->in_call = false;
    kvt_h2o_call ended = Described(*h2o);
    ended.triggered = end.triggered;
    ended.final_keep_tokens = end.final_keep_tokens;
    ExposePlan(*h2o, h2o->engine.pending(h2o->start.layer), ended);
    Fill(call, ended);
  });
}

kvt_status kvt_h2o_truncate(kvt_h2o* h2o, uint32_t layer, uint64_t length) {
  return CallOn(h2o, [&] {
    Require(!h2o->in_call, "kvt_h2o_truncate between kvt_h2o_begin and kvt_h2o_finish");
    Require(layer < h2o->engine.geometry().layers, "layer: not below the model's number of layers");
    Require(length <= h2o->engine.length(layer), "length: above the tokens of the layer's cache");
    h2o->engine.Truncate(layer, length);
  });
}
