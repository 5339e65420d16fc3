// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/number.h"

namespace kv::mnn::runtime {
namespace {

Json NumberJson(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value))) return static_cast<int64_t>(value);
  return ShortestDouble(static_cast<float>(value));
}

Json ParamsJson(const ReplayResult& result) {
  Json params = {{"h2o_enable", result.h2o_enabled}};
  eviction::ForEachParameter(result.h2o, [&](std::string_view name, double value) {
    if (name == "h2o_target_mode") {
      params[std::string(name)] = value == 0 ? "static" : "adaptive";
    } else {
      params[std::string(name)] = NumberJson(value);
    }
  });
  ForEachParameter(result.lossless, [&](std::string_view name, const ParameterValue& value) {
    if (const auto* number = std::get_if<double>(&value)) {
      params[std::string(name)] = NumberJson(*number);
    } else {
      params[std::string(name)] = std::get<std::string_view>(value);
    }
  });
  return params;
}

Json CountersJson(const LayerCounters& c, bool timing) {
  Json json = {{"h2o_lossless_raw_bytes", c.raw_bytes},
               {"h2o_lossless_compressed_bytes", c.compressed_bytes},
               {"h2o_lossless_decompressed_bytes", c.decompressed_bytes}};
  if (timing) {
    json["h2o_lossless_compress_us"] = c.compress_us;
    json["h2o_lossless_decompress_us"] = c.decompress_us;
  }
  json["h2o_lossless_fallback_count"] = c.fallback_count;
  json["h2o_lossless_backpressure_skip_count"] = c.backpressure_skip_count;
  return json;
}

Json EngineTermsJson(const ReplayResult& result, bool timing) {
  const EngineMetrics& m = result.metrics;
  const mnn::h2o::MnnMetrics& h2o = result.h2o_metrics;
  Json json = {{"h2o_lossless_ratio", m.ratio}};
  json.update(CountersJson(m.sums, timing));
  json["h2o_lossless_queue_depth_peak"] = m.queue_depth_peak;
  json["h2o_lossless_async_queue_peak"] = m.async_queue_peak;
  if (timing) {
    json["h2o_lossless_async_wait_us"] = m.async_wait_us;
    json["h2o_codec_us"] = m.codec_us;
    json["h2o_evict_us"] = result.h2o_evict_us;
  }
  json["h2o_lossless_decode_cache_hit"] = m.decode_cache_hit;
  json["h2o_lossless_decode_cache_miss"] = m.decode_cache_miss;
  json["h2o_keep_ratio"] = h2o.keep_ratio;
  json["h2o_lossy_ratio"] = h2o.lossy_ratio;
  json["h2o_target_keep_effective"] = h2o.target_keep_effective;
  json["h2o_floor_keep_by_recent_sink"] = h2o.floor_keep;
  json["h2o_block_quantized_keep"] = h2o.quantized_keep;
  json["h2o_last_evict_tokens"] = h2o.last_evict_tokens;
  json["h2o_total_evict_tokens"] = h2o.total_evict_tokens;
  json["h2o_plans_cleared"] = result.h2o_plans_cleared;
  return json;
}

Json RatioJson(uint64_t raw, uint64_t blob) {
  if (blob == 0) return nullptr;
  return static_cast<double>(raw) / static_cast<double>(blob);
}

Json MeasuredJson(const Measured& m, bool timing) {
  Json json = {{"encode_calls", m.encode_calls},
               {"encoded_tokens", m.encoded_tokens},
               {"encoded_raw_bytes", m.encoded_raw_bytes},
               {"encoded_blob_bytes", m.encoded_blob_bytes},
               {"verified_raw_bytes", m.verified_raw_bytes},
               {"verified_blob_bytes", m.verified_blob_bytes},
               {"verified_ratio", RatioJson(m.verified_raw_bytes, m.verified_blob_bytes)},
               {"verified_k_ratio", RatioJson(m.verified_raw_of[0], m.verified_blob_of[0])},
               {"verified_v_ratio", RatioJson(m.verified_raw_of[1], m.verified_blob_of[1])},
               {"verify_failures", m.verify_failures},
               {"no_gain", m.no_gain},
               {"failures", m.failures},
               {"backpressure", m.backpressure},
               {"decode_calls", m.decode_calls},
               {"cache_copies", m.cache_copies},
               {"seeded_hits", m.seeded_hits}};
  if (timing) {
    json["encode_us"] = m.encode_us;
    json["decode_us"] = m.decode_us;
    json["wait_us"] = m.wait_us;
  }
  return json;
}

Json ContentJson(const ContentCheck& content) {
  Json json = {{"ranges", content.ranges},
               {"bytes", content.bytes},
               {"mismatches", content.mismatches},
               {"equal", content.equal()},
               {"first_mismatch", nullptr}};
  if (content.first) {
    json["first_mismatch"] = {{"layer", content.first->layer},
                              {"tensor", content.first->is_value ? "v" : "k"},
                              {"head", content.first->head},
                              {"position", content.first->position}};
  }
  return json;
}

Json ResidentJson(const Resident& r) {
  return {{"full_bytes", r.full},       {"held_bytes", r.held},    {"raw_bytes", r.raw},
          {"blob_bytes", r.blobs},      {"cache_bytes", r.caches}, {"in_flight_bytes", r.in_flight},
          {"resident_bytes", r.total()}};
}

Json MemoryJson(const ReplayResult& result, bool detail) {
  const Resident& end = result.steps.back();
  Json json = {{"before_bytes", result.steps.front().total()},
               {"peak_bytes", result.peak_bytes},
               {"end", ResidentJson(end)},
               {"ratio", result.whole_model_ratio()},
               {"removed_fraction", 1 - 1 / result.whole_model_ratio()}};
  if (!detail) return json;
  Json steps = Json::array();
  for (const Resident& step : result.steps) {
    Json one = {{"token", step.token}};
    one.update(ResidentJson(step));
    steps.push_back(std::move(one));
  }
  json["steps"] = std::move(steps);
  return json;
}

Json LayersJson(const ReplayResult& result, bool timing) {
  Json layers = Json::array();
  for (const LayerResult& layer : result.layers) {
    Json json = {{"layer", layer.layer},
                 {"in_h2o_range", layer.in_h2o_range},
                 {"held_tokens", layer.length},
                 {"cold_tokens", layer.cold_tokens}};
    json["memory"] = ResidentJson(layer.end);
    json["measured"] = MeasuredJson(layer.measured, timing);
    json["content"] = ContentJson(layer.content);
    json["engine_terms"] = CountersJson(layer.counters, timing);
    layers.push_back(std::move(json));
  }
  return layers;
}

}  // namespace

Totals TotalsOf(const ReplayResult& result) {
  Totals totals;
  for (const LayerResult& layer : result.layers) {
    totals.held_tokens += layer.length;
    totals.cold_tokens += layer.cold_tokens;
    totals.full_bytes += layer.end.full;
  }
  return totals;
}

std::string WhyNothing(const ReplayResult& result) {
  if (result.measured.encode_calls > 0 || result.metrics.sums.backpressure_skip_count > 0) {
    return {};
  }
  const Config& c = result.lossless;
  if (!c.active()) return "h2o_lossless_enable, _codec or _runtime_enable switches the path off";
  if (c.scope == Scope::kNone) return "h2o_lossless_scope is none";
  uint64_t longest = 0;
  for (const LayerResult& layer : result.layers) longest = std::max(longest, layer.length);
  if (longest < static_cast<uint64_t>(result.h2o.trigger_min_tokens)) {
    return fmt::format("h2o_trigger_min_tokens {}: no layer was that long",
                       result.h2o.trigger_min_tokens);
  }
  if (TotalsOf(result).cold_tokens == 0) {
    return fmt::format(
        "h2o_lossless_hot_sink_tokens {} and _hot_recent_tokens {} leave no cold zone",
        c.hot_sink_tokens, c.hot_recent_tokens);
  }
  return "no cold range in scope grew to a whole step";
}

Json ReportJson(const ReplayResult& result, const ReportOptions& options) {
  const Totals totals = TotalsOf(result);
  Json json;
  json["engine"] = Name(result.engine);
  json["params"] = ParamsJson(result);
  json["prompt_tokens"] = result.prompt;
  json["decode_tokens"] = result.end - result.prompt;
  if (result.engine == Engine::kDesign) json["cache_capacity_bytes"] = result.cache_bytes;
  json["held_token_rows"] = totals.held_tokens;
  json["cold_token_rows"] = totals.cold_tokens;
  json["content"] = ContentJson(result.content);
  json["memory"] = MemoryJson(result, options.detail);
  json["measured"] = MeasuredJson(result.measured, options.timing);
  json["engine_terms"] = EngineTermsJson(result, options.timing);
  if (options.timing) {
    json["attention_only_speed"] = nullptr;
    if (result.speed) {
      json["attention_only_speed"] = {
          {"tokens_per_second", result.speed->tokens_per_second()},
          {"tokens", result.speed->tokens},
          {"elapsed_us", std::llround(result.speed->seconds * 1e6)},
          {"attention_us", std::llround(result.speed->attention_seconds * 1e6)}};
    } else {
      json["no_speed_reason"] = result.no_speed_reason;
    }
  }
  json["layers"] = LayersJson(result, options.timing);
  json["why_nothing"] = nullptr;
  if (const std::string why = WhyNothing(result); !why.empty()) json["why_nothing"] = why;
  json["warnings"] = result.warnings;
  return json;
}

void ForEachEvent(const ReplayResult& result, bool timing,
                  const std::function<void(const Json&)>& emit) {
  for (const Event& event : result.events) {
    Json json = {{"schema", "kvtool.replay-lossless-event/1"},
                 {"kind", Name(event.kind)},
                 {"token", event.token},
                 {"layer", event.layer},
                 {"length", event.length},
                 {"begin", event.begin},
                 {"tokens", event.tokens},
                 {"raw_bytes", event.raw_bytes},
                 {"compressed_bytes", event.compressed_bytes}};
    if (timing) json["us"] = event.us;
    if (!event.what.empty()) json["what"] = event.what;
    emit(json);
  }
}

}  // namespace kv::mnn::runtime
