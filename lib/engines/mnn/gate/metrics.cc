// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/metrics.h"

namespace kv::mnn {
namespace {

constexpr auto kOriginal = gate::Voice::kOriginal;
constexpr auto kReplay = gate::Needs::kReplay;
constexpr auto kEngine = gate::Needs::kEngine;
constexpr auto kClock = gate::Needs::kClock;
constexpr auto kHigher = gate::Better::kHigher;
constexpr auto kLower = gate::Better::kLower;
constexpr auto kNeither = gate::Better::kNeither;

constexpr gate::MetricInfo kMetrics[] = {
    {"lossy_best", kOriginal, kReplay, kHigher, false,
     "largest h2o_lossy_ratio of any row: the last plan's, of one layer", "eviction_ratio_best"},
    {"lossless_selected_value", kOriginal, kReplay, kHigher, false,
     "offline estimate over the front layers, grouped by 192 tokens; no runtime figure",
     "offline_ratio"},
    {"decode_gate_tps", kOriginal, kEngine, kHigher, false, "tokens/s of the whole model",
     "tokens_per_second"},
    {"decode_best", kOriginal, kEngine, kHigher, false, "fastest row, tokens/s"},
    {"decode_baseline", kOriginal, kEngine, kNeither, false, "baseline tokens/s"},
    {"decode_drop_ratio", kOriginal, kEngine, kLower, false,
     "(decode_baseline - decode_gate_tps) / decode_baseline", "tokens_per_second_drop"},
    {"runtime_decomp_best_us", kOriginal, kClock, kLower, false, "slowest row's decode time",
     "decode_us"},
    {"runtime_async_wait_best_us", kOriginal, kClock, kLower, false, "longest wait for workers",
     "wait_us"},
    {"runtime_async_wait_headroom_us", kOriginal, kClock, kHigher, false, "limit - longest wait"},
    {"runtime_async_wait_headroom_ratio", kOriginal, kClock, kHigher, false, "headroom / limit"},
    {"runtime_queue_peak_best", kOriginal, kReplay, kLower, false, "deepest queue of any row",
     "queue_peak"},
    {"runtime_fallback_best", kOriginal, kReplay, kLower, false, "most fallbacks of any row",
     "fallbacks"},
    {"runtime_backpressure_skip_best", kOriginal, kReplay, kLower, false,
     "most submissions skipped because the queue was full", "queue_skips"},
    {"runtime_decode_cache_hit_best", kOriginal, kReplay, kNeither, false, "most cache hits",
     "cache_hits"},
    {"runtime_decode_cache_miss_best", kOriginal, kReplay, kNeither, false, "most cache misses",
     "cache_misses"},
    {"kv_content_consistency_pass", kOriginal, kReplay, kHigher, true,
     "no fallback, some activity, no suspicious log line; no byte is compared"},
    {"kv_invalid_log_count", kOriginal, kEngine, kLower, false, "suspicious lines in the logs",
     "suspicious_log_lines"},
    {"baseline_decode_tps_avg", kOriginal, kEngine, kNeither, false, "llm_demo without H2O"},
    {"candidate_decode_tps_avg", kOriginal, kEngine, kHigher, false, "llm_demo with H2O"},
    {"candidate_lossy_ratio_avg", kOriginal, kReplay, kHigher, false, "mean over rows"},
    {"candidate_lossless_ratio_avg", kOriginal, kReplay, kHigher, false, "mean over rows"},
    {"candidate_runtime_total_ratio_avg", kOriginal, kReplay, kHigher, false,
     "mean of lossy x lossless: factors of different layers"},
    {"decode_pass", kOriginal, kEngine, kHigher, true, "the original's own verdict on speed"},
};

}  // namespace

std::span<const gate::MetricInfo> GateMetrics() { return kMetrics; }

}  // namespace kv::mnn
