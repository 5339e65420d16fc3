// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <vector>

#include "lib/api/context.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"

// MNN's eviction as a C object.
struct kvt_h2o {
  kvt_h2o(const kv::eviction::BlockConfig& config, const kv::mnn::h2o::MnnGeometry& geometry,
          kv::mnn::h2o::MnnRevision revision, uint64_t prompt_tokens)
      : engine(config, geometry, revision, prompt_tokens) {}

  kv::mnn::h2o::MnnEngine engine;
  kv::mnn::h2o::CallStart start;  // of the call that runs, or of the last one
  std::vector<kvt_range> ranges;  // that the last kvt_h2o_call points to
  uint32_t next_layer = 0;
  bool in_call = false;
};

namespace kv::api {
namespace {

using eviction::BlockConfig;

void RequireCall(const kvt_h2o* h2o, const kvt_h2o_call* call) {
  Require(h2o != nullptr, "h2o");
  Require(call != nullptr && call->struct_size == sizeof *call, "call->struct_size");
}

void Lend(kvt_h2o& h2o, const KeepPlan& plan, kvt_h2o_call& call) {
  h2o.ranges.clear();
  for (const auto& range : plan) h2o.ranges.push_back({range.begin, range.count});
  call.plan = {h2o.ranges.data(), h2o.ranges.size()};
}

void Describe(const kvt_h2o& h2o, kvt_h2o_call& call) {
  call = {};
  call.struct_size = sizeof call;
  call.layer = h2o.start.layer;
  call.length = h2o.start.length;
  call.in_range = h2o.start.in_range;
  call.keep_ratio = h2o.engine.metrics().keep_ratio;
}

BlockConfig ConfigOf(const kvt_h2o_params& params) {
  Require(params.struct_size == sizeof params, "params->struct_size");
  Require(params.reserved == 0, "params->reserved");
  Require(params.target_mode <= 1, "params->target_mode");
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

void kvt_h2o_defaults(kvt_h2o_params* out) {
  if (out == nullptr || out->struct_size != sizeof *out) return;
  const kv::eviction::BlockConfig config;
  *out = {};
  out->struct_size = sizeof *out;
  out->layer_start = static_cast<int32_t>(config.layer_start);
  out->layer_end = static_cast<int32_t>(config.layer_end);
  out->block_tokens = static_cast<uint32_t>(config.block_tokens);
  out->sink_tokens = static_cast<uint32_t>(config.sink_tokens);
  out->recent_tokens = static_cast<uint32_t>(config.recent_tokens);
  out->update_interval = static_cast<uint32_t>(config.update_interval);
  out->trigger_min_tokens = static_cast<uint32_t>(config.trigger_min_tokens);
  out->target_mode = static_cast<uint32_t>(config.target_mode);
  out->target_keep_ratio = config.target_keep_ratio;
  out->target_lossy_ratio = config.target_lossy_ratio;
  out->ema_alpha = config.ema_alpha;
}

kvt_status kvt_h2o_create(kvt_ctx* ctx, const kvt_h2o_params* params, const kvt_geometry* geometry,
                          kvt_h2o** out) {
  return Call(ctx, [&] {
    Require(params != nullptr && out != nullptr, "params");
    Require(geometry != nullptr && geometry->struct_size == sizeof *geometry,
            "geometry->struct_size");
    constexpr uint32_t kMostLayers = 1 << 16;
    Require(geometry->layers > 0 && geometry->layers <= kMostLayers, "geometry->layers");
    Require(params->revision == 0 || params->revision == 6, "params->revision");
    Require(params->prompt_tokens <= kMostTokens, "params->prompt_tokens");
    const kv::mnn::h2o::MnnGeometry sizes{geometry->layers, geometry->query_heads,
                                          geometry->kv_heads, geometry->head_dim,
                                          geometry->element_bytes};
    *out = new kvt_h2o(
        ConfigOf(*params), sizes,
        params->revision == 0 ? kv::mnn::h2o::MnnRevision::kFinal : kv::mnn::h2o::MnnRevision::kR6,
        params->prompt_tokens);
  });
}

void kvt_h2o_free(kvt_h2o* h2o) { delete h2o; }

kvt_status kvt_h2o_begin(kvt_h2o* h2o, uint64_t new_tokens, kvt_h2o_call* call) {
  return Caught(nullptr, [&] {
    RequireCall(h2o, call);
    Require(!h2o->in_call, "begin follows begin");
    const uint32_t layer = h2o->next_layer;
    Require(new_tokens <= kMostTokens && h2o->engine.length(layer) <= kMostTokens, "new_tokens");
    // Nothing fails once the engine has begun, so that a call can be made again after any failure.
    h2o->ranges.reserve(h2o->engine.pending(layer).size());
    h2o->next_layer = (h2o->next_layer + 1) % h2o->engine.geometry().layers;
    h2o->start = h2o->engine.Begin(new_tokens);
    h2o->in_call = true;
    Describe(*h2o, *call);
    call->apply = h2o->start.plan_applied;
    Lend(*h2o, h2o->start.applied, *call);
  });
}

kvt_status kvt_h2o_finish(kvt_h2o* h2o, const float* block_sums, size_t blocks, uint64_t query_rows,
                          kvt_h2o_call* call) {
  return Caught(nullptr, [&] {
    RequireCall(h2o, call);
    Require(h2o->in_call, "finish without begin");
    Require(query_rows <= kMostTokens, "query_rows");
    const bool scored = h2o->start.in_range;
    Require(!scored || (block_sums != nullptr && blocks == h2o->engine.blocks(h2o->start.length)),
            "blocks");
    const std::span<const float> sums =
        scored ? std::span(block_sums, blocks) : std::span<const float>();
    const kv::mnn::h2o::CallEnd end = h2o->engine.Finish(sums, query_rows);
    h2o->in_call = false;
    Describe(*h2o, *call);
    call->triggered = end.triggered;
    call->final_keep_tokens = end.final_keep_tokens;
    Lend(*h2o, h2o->engine.pending(h2o->start.layer), *call);
  });
}

kvt_status kvt_h2o_truncate(kvt_h2o* h2o, uint32_t layer, uint64_t length) {
  return Caught(nullptr, [&] {
    Require(h2o != nullptr && !h2o->in_call, "h2o");
    Require(layer < h2o->engine.geometry().layers && length <= h2o->engine.length(layer), "length");
    h2o->engine.Truncate(layer, length);
  });
}
