// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/parameter_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "lib/core/base/error.h"

namespace kv {
namespace {

constexpr ParameterText kRuntime[] = {
    {"h2o_lossless_enable", "INT", "1: the lossless path is on"},
    {"h2o_lossless_scope", "TEXT", "Layers that are compressed, by name or by the engine's number"},
    {"h2o_lossless_front_n", "INT", "First layers that are compressed whole"},
    {"h2o_lossless_codec", "TEXT", "Codec of what is compressed"},
    {"h2o_lossless_runtime_enable", "INT", "1: compress while decoding"},
    {"h2o_lossless_block_tokens", "INT", "Tokens that are compressed together",
     "--group-tokens|--block-tokens"},
    {"h2o_lossless_hot_recent_tokens", "INT", "Last tokens that stay uncompressed",
     "--hot-recent|--hot-recent-tokens"},
    {"h2o_lossless_hot_sink_tokens", "INT", "First tokens that stay uncompressed",
     "--hot-sink|--hot-sink-tokens"},
    {"h2o_lossless_kept_sample_layers", "INT",
     "Layers of those that H2O evicts from whose kept tokens are compressed; 0: all"},
    {"h2o_lossless_kept_sample_token_interval", "INT",
     "Decoded tokens between two compressions of kept tokens"},
    {"h2o_lossless_front_sample_token_interval", "INT",
     "Decoded tokens between two compressions of the first layers"},
    {"h2o_lossless_store_disable_front", "INT", "1: mode store leaves the first layers alone"},
    {"h2o_lossless_store_bootstrap_tokens", "INT",
     "Tokens of the first range that mode store compresses; 0: half a group, 16 at least"},
    {"h2o_lossless_store_grouped_step_tokens", "INT",
     "Tokens of each later range of mode store; 0: three groups"},
    {"h2o_lossless_codec_runtime", "TEXT", "Name of the codec, which the engine never reads"},
    {"h2o_lossless_predictors_k", "TEXT", "Predictors to try for K",
     "--k-predictors|--predictors-k"},
    {"h2o_lossless_predictors_v", "TEXT", "Predictors to try for V",
     "--v-predictors|--predictors-v"},
    {"h2o_lossless_async_threads", "INT", "Threads that compress beside decoding; 0: none"},
    {"h2o_lossless_max_queue", "INT", "Ranges that may wait for them"},
    {"h2o_lossless_decode_cache_blocks", "INT", "Decoded ranges that are kept for reuse"},
    {"h2o_lossless_strict_roundtrip_check", "INT", "1: decode each range again and compare"},
    {"h2o_layer_start", "INT", "First layer that evicts"},
    {"h2o_layer_end", "INT", "Last layer that evicts, -1: the last one"},
    {"h2o_block_tokens", "INT", "Tokens per block, which is kept or evicted as a whole"},
    {"h2o_sink_tokens", "INT", "First tokens that stay", "--h2o-sink|--h2o-sink-tokens"},
    {"h2o_recent_tokens", "INT", "Last tokens that stay", "--h2o-recent|--h2o-recent-tokens"},
    {"h2o_target_mode", "TEXT", "How the engine reads its target"},
    {"h2o_target_keep_ratio", "NUMBER", "static: share of the tokens that stays",
     "--h2o-keep-share|--h2o-target-keep-ratio"},
    {"h2o_target_lossy_ratio", "NUMBER", "adaptive: ratio to reach by evicting",
     "--h2o-target-ratio|--h2o-target-lossy-ratio"},
    {"h2o_ema_alpha", "NUMBER", "Weight of the old score"},
    {"h2o_update_interval", "INT", "Tokens between two decisions"},
    {"h2o_trigger_min_tokens", "INT", "Shortest cache that is evicted from",
     "--h2o-trigger-min|--h2o-trigger-min-tokens"},
};

constexpr ParameterText kAnalyzer[] = {
    {"lossy_target", "NUMBER", "Least ratio that eviction must reach"},
    {"lossless_target", "NUMBER", "Least ratio that lossless compression must reach"},
    {"decode_baseline", "NUMBER", "Tokens/s of decoding without either, to compare with"},
    {"decode_gate_aggregation", "TEXT",
     "How many rounds become one speed: avg, median, p90 or best"},
    {"decode_baseline_source", "TEXT", "Where the baseline speed is from, for the report"},
    {"decode_baseline_samples", "INT", "Rounds behind the baseline speed, for the report"},
    {"decode_drop_target", "NUMBER", "Share of the baseline speed that may be lost, e.g. 0.05"},
    {"runtime_mode", "TEXT", "Mode that the logs must be of: probe, full or store"},
    {"async_threads", "INT", "Threads that the run was told to compress with"},
    {"require_kv_content_consistency", "", "Fail where restored values differed from the cache"},
    {"max_kv_invalid_log_lines", "INT", "Most log lines that may speak of an invalid cache"},
    {"max_lossless_queue_peak", "NUMBER", "Most ranges that may wait for compression"},
    {"max_lossless_fallback", "NUMBER", "Most ranges that may be left uncompressed"},
    {"max_lossless_backpressure_skip", "NUMBER", "Most ranges that a full queue may skip"},
    {"max_lossless_decomp_us", "NUMBER", "Most microseconds that decompression may take"},
    {"max_lossless_async_wait_us", "NUMBER", "Most microseconds that decoding may wait"},
    {"async_wait_headroom_warn_ratio", "NUMBER",
     "Warn where less than this share of the limit on waiting is left"},
    {"require_runtime_decomp", "", "Fail unless something was decompressed"},
    {"require_decode_cache_hit", "", "Fail unless a decoded range was used again"},
    {"require_async_queue_activity", "", "Fail unless the queue was used"},
    {"require_decode_cache_activity", "", "Fail unless decoded ranges were looked for"},
    {"strict_runtime_metric_columns", "", "Fail where a column of the metrics is missing"},
};

const ParameterText& FindText(std::span<const ParameterText> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const ParameterText& one) { return one.name == name; });
  KV_ASSERT(found != table.end());
  return *found;
}

}  // namespace

const ParameterText& RuntimeParameterText(std::string_view name) {
  return FindText(kRuntime, name);
}

const ParameterText& AnalyzerOptionText(std::string_view name) { return FindText(kAnalyzer, name); }

std::string FlagNames(const ParameterText& parameter, std::string_view prefix) {
  const auto with_dashes = [](std::string_view name) {
    std::string flag = fmt::format("--{}", name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    return flag;
  };
  const std::string_view name = parameter.name;
  const bool is_short = name.starts_with(prefix);
  std::string flags(parameter.flag);
  if (flags.empty()) flags = with_dashes(is_short ? name.substr(prefix.size()) : name);
  if (!prefix.empty() && is_short) {  // the engine's own name works as well
    flags += (flags.find('|') == flags.npos ? '|' : ',') + with_dashes(name);
  }
  return flags;
}

}  // namespace kv
