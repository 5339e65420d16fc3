// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// MNN for the gate: parameters, the suite's cases with their thresholds, limits against baselines,
// and cases that fit recorded data.
#include "lib/engines/mnn/gate/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>

#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/engines/mnn/logs/demo.h"
#include "lib/engines/mnn/logs/suite.h"

namespace kv::mnn {
namespace {

using namespace gate;

constexpr std::string_view kModes[] = {"probe", "full", "store"};
constexpr std::string_view kModeParam = "h2o_lossless_runtime_mode";

constexpr auto kAtLeast = Op::kAtLeast;
constexpr auto kAtMost = Op::kAtMost;
// Limit on threads. The engine clamps every other number, but would really start this many threads.
constexpr uint64_t kMostThreads = 256;

// Every parameter of the engine, under the name of its meta field.
constexpr ParamInfo kParams[] = {
    {.name = "h2o_enable", .word = "evict"},
    {.name = "h2o_layer_start", .word = "evict_layer_start"},
    {.name = "h2o_layer_end", .word = "evict_layer_end"},
    {.name = "h2o_block_tokens", .word = "evict_block_tokens"},
    {.name = "h2o_sink_tokens", .word = "evict_sink_tokens"},
    {.name = "h2o_recent_tokens", .word = "evict_recent_tokens"},
    {.name = "h2o_target_mode", .words = "static|adaptive", .word = "evict_target_mode"},
    {.name = "h2o_target_keep_ratio", .word = "evict_keep_fraction"},
    {.name = "h2o_target_lossy_ratio", .word = "evict_target_ratio"},
    {.name = "h2o_ema_alpha", .word = "evict_ema_alpha"},
    {.name = "h2o_update_interval", .word = "evict_update_interval"},
    {.name = "h2o_trigger_min_tokens", .word = "evict_trigger_min_tokens"},
    {.name = "h2o_lossless_enable", .word = "compress"},
    {.name = "h2o_lossless_scope",
     .words = "none|front_n|h2o_kept|front_n_and_h2o_kept|front_n+h2o_kept",
     .most = 3,
     .word = "compress_scope"},
    {.name = "h2o_lossless_front_n", .word = "compress_front_layers"},
    {.name = "h2o_lossless_codec", .words = "none|gear_delta", .word = "compress_codec"},
    {.name = "h2o_lossless_runtime_enable", .word = "compress_runtime_enable"},
    {.name = kModeParam, .words = "probe|full|store", .word = "compress_mode"},
    {.name = "h2o_lossless_block_tokens", .word = "compress_block_tokens"},
    {.name = "h2o_lossless_hot_recent_tokens", .word = "compress_hot_recent_tokens"},
    {.name = "h2o_lossless_hot_sink_tokens", .word = "compress_hot_sink_tokens"},
    {.name = "h2o_lossless_kept_sample_layers", .word = "compress_kept_sample_layers"},
    {.name = "h2o_lossless_kept_sample_token_interval",
     .word = "compress_kept_sample_token_interval"},
    {.name = "h2o_lossless_front_sample_token_interval",
     .word = "compress_front_sample_token_interval"},
    {.name = "h2o_lossless_store_disable_front", .word = "compress_store_disable_front"},
    {.name = "h2o_lossless_store_bootstrap_tokens", .word = "compress_store_bootstrap_tokens"},
    {.name = "h2o_lossless_store_grouped_step_tokens",
     .word = "compress_store_grouped_step_tokens"},
    {.name = "h2o_lossless_codec_runtime", .words = "*", .word = "compress_codec_runtime"},
    {.name = "h2o_lossless_predictors_k", .words = "*", .word = "compress_predictors_k"},
    {.name = "h2o_lossless_predictors_v", .words = "*", .word = "compress_predictors_v"},
    {.name = "h2o_lossless_async_threads", .most = kMostThreads, .word = "compress_async_threads"},
    {.name = "h2o_lossless_max_queue", .word = "compress_max_queue"},
    {.name = "h2o_lossless_decode_cache_blocks", .word = "compress_decode_cache_blocks"},
    {.name = "h2o_lossless_strict_roundtrip_check", .word = "compress_strict_roundtrip_check"},
};

// Returns the thresholds that the suite's analyzer applies to every runtime case.
std::vector<Rule> CommonRules(const logs::AnalyzerOptions& options) {
  return {{"lossy_best", kAtLeast, options.lossy_target},
          {"lossless_selected_value", kAtLeast, options.lossless_target},
          {"decode_drop_ratio", kAtMost, options.decode_drop_target},
          {"runtime_queue_peak_best", kAtMost, options.max_lossless_queue_peak},
          {"runtime_fallback_best", kAtMost, options.max_lossless_fallback}};
}

Rule IsTrue(std::string metric) {
  return {std::move(metric), Op::kEqual, 1, false, false, /*is_flag=*/true};
}

// MNN's gate has no thresholds on the ratios of real prompts, so these rules have none either.
std::vector<Rule> DemoRules() {
  return {{"decode_drop_ratio", kAtMost, logs::DemoOptions{}.decode_drop_target},
          IsTrue("decode_pass"),
          {"runtime_decomp_best_us", Op::kAbove, 0}};
}

// Returns the names of the cases of both suites, in their order.
std::span<const std::string_view> CaseNames() {
  static const auto names = [] {
    std::array<std::string_view, std::size(logs::kSuiteCases)> all;
    std::transform(std::begin(logs::kSuiteCases), std::end(logs::kSuiteCases), all.begin(),
                   [](const logs::SuiteCaseName& known) { return known.name; });
    return all;
  }();
  return names;
}

// Returns the thresholds that MNN's runtime suite has for its case of this mode.
std::vector<Rule> ListRules(std::string_view mode) {
  const logs::AnalyzerOptions options =
      logs::SuiteOptions(fmt::format("{}_{}", kRuntimeSuite, mode));
  std::vector<Rule> rules = CommonRules(options);
  // kvtool's own rule: a replay's estimate of speed is listed beside the figures that only an
  // engine can measure.
  rules.push_back({"attention_drop_ratio", kAtMost, options.decode_drop_target, false, true});
  if (options.require_runtime_decomp) {
    rules.push_back({"runtime_decomp_best_us", Op::kAbove, 0});
    rules.push_back({"runtime_decomp_best_us", kAtMost, options.max_lossless_decomp_us});
  }
  rules.push_back({"runtime_async_wait_best_us", kAtMost, options.max_lossless_async_wait_us});
  if (options.require_kv_content_consistency)
    rules.push_back(IsTrue("kv_content_consistency_pass"));
  return rules;
}

// Returns a case of the suite with its mode, parameters and thresholds.
CaseSpec BuildSuiteCase(std::string_view name) {
  CaseSpec spec;
  spec.name = name;
  spec.only_engine = name.starts_with(kDemoSuite);
  spec.suite = spec.only_engine ? kDemoSuite : kRuntimeSuite;
  const auto* const known =
      std::find_if(std::begin(logs::kSuiteCases), std::end(logs::kSuiteCases),
                   [&](const logs::SuiteCaseName& one) { return one.name == name; });
  spec.mode = known->mode;
  if (name == logs::kBaselineCase) {
    spec.params = {{"h2o_enable", 0.0}, {"h2o_lossless_enable", 0.0}};
    spec.rules = CommonRules(logs::SuiteOptions(name));
  } else {
    spec.rules = spec.only_engine ? DemoRules() : ListRules(spec.mode);
  }
  return spec;
}

constexpr std::string_view kRuntimes[] = {"mnn", "mnn-r6", "design"};
constexpr SuiteInfo kSuites[] = {{kRuntimeSuite, "Runtime", "runtime_cases"},
                                 {kDemoSuite, kDemoSuite, "llm_demo_cases"}};

// Ratios may drop by 1%, attention error may rise by 5%, resident bytes by 1%. A speed, which logs
// alone have, may drop by 5% and by what its repetitions explain.
constexpr DeltaRule kBaselineRules[] = {{"lossy_worst", 0.01, {}},
                                        {"whole_model_ratio", 0.01, {}},
                                        {"measured_ratio", 0.01, {}},
                                        {"measured_ratio_mean", 0.01, {}},
                                        {"lossless_selected_value", 0.01, {}},
                                        {"attention_error.mean", {}, 0.05},
                                        {"attention_error.evicting_mean", {}, 0.05},
                                        {"resident_bytes.peak", {}, 0.01},
                                        {"decode_gate_tps", 0.05, {}}};

constexpr std::string_view kColumns[] = {
    "whole_model_ratio",    "measured_ratio",          "lossy_worst",
    "lossy_mean",           "content.compared_ranges", "content.mismatches",
    "attention_error.mean", "attention_error.worst",   "resident_bytes.peak"};

constexpr FigurePair kPairs[] = {
    {"eviction", "lossy_best", "lossy_worst"},
    {"real prompts", "candidate_lossy_ratio_avg", "lossy_worst", kDemoSuite},
    {"lossless", "lossless_selected_value", "measured_ratio", {}, true},
    {"real prompts", "candidate_lossless_ratio_avg", "measured_ratio", kDemoSuite},
    {"whole model", "candidate_runtime_total_ratio_avg", "whole_model_ratio"},
    {"content", "kv_content_consistency_pass", "content.compared_ranges"},
    {"decode speed", "decode_drop_ratio", "attention_drop_ratio"}};

constexpr HistoryFigure kHistory[] = {
    {"whole_model_ratio", "ratio", "Ratio of the whole model. Higher is better."},
    {"measured_ratio", "ratio", "Lossless ratio of verified bytes. Higher is better."},
    {"lossy_best", "ratio", "Eviction ratio, of the best row of each case (lossy_best)."},
    {"attention_error.mean", "error", "Mean attention error. Lower is better.", false, true},
    {"attention_error.evicting_mean", "error",
     "Mean attention error of queries that lost a key. Lower is better.", false, true},
    {"resident_bytes.peak", "bytes", "Peak bytes of K and V held. Lower is better.", true, true},
    {"decode_drop_ratio", "share", "Decode speed lost against the baseline. Lower is better.",
     false},
    {"prompt_tokens_per_second", "tokens/s", "Speed of reading prompts. Higher is better."},
    {"loss.mean_kl", "nats", "Mean loss against the engine's base run. Lower is better.", false,
     true}};

constexpr std::string_view kRemarks[] = {
    "This summary was written by the engine's suite. Its *_best figures are the largest of any "
    "row, even if larger is worse; one good row is enough to pass a ratio.",
    "lossless_selected_value is an offline estimate over the first layers, not a figure of "
    "these runs.",
    "kv_content_consistency_pass compares no content: it counts log lines, queue activity and "
    "fallbacks.",
    "decode_drop_ratio compares the mean of the rows with the best row of another batch."};

uint64_t PowerOfTwo(uint64_t about, uint64_t least, uint64_t most) {
  return std::clamp(std::bit_floor(about), least, most);
}

CaseSpec NewCase(const char* name, const DataSize& size) {
  CaseSpec spec;
  spec.suite = kRuntimeSuite;
  spec.name = name;
  spec.mode = "store";
  spec.runtime = "design";
  spec.prompt_tokens = {size.prompt_tokens};
  return spec;
}

double Number(uint64_t value) { return static_cast<double>(value); }

// Returns a case that compresses ranges of an eighth of the cache, in every layer, as soon as they
// leave the last eighth.
CaseSpec StoredCase(const DataSize& size) {
  CaseSpec spec = NewCase("stored", size);
  const uint64_t range = PowerOfTwo(size.tokens / 8, 4, 128);
  spec.params = {{"h2o_enable", 0.0},
                 {"h2o_trigger_min_tokens", Number(std::min<uint64_t>(size.prompt_tokens, 32))},
                 {"h2o_lossless_front_n", Number(size.layers)},
                 {"h2o_lossless_store_disable_front", 0.0},
                 {"h2o_lossless_block_tokens", Number(range)},
                 {"h2o_lossless_store_bootstrap_tokens", Number(range)},
                 {"h2o_lossless_store_grouped_step_tokens", Number(range)},
                 {"h2o_lossless_hot_sink_tokens", 4.0},
                 {"h2o_lossless_hot_recent_tokens", Number(range)}};
  return spec;
}

// Returns a case that evicts half of the cache from the end of the prompt on; the most recent
// eighth is kept.
CaseSpec EvictedCase(const DataSize& size) {
  CaseSpec spec = NewCase("evicted", size);
  const uint64_t block = PowerOfTwo(size.tokens / 16, 1, 32);
  const uint64_t decoded = size.tokens - size.prompt_tokens;
  spec.params = {
      {"h2o_lossless_enable", 0.0},
      {"h2o_layer_start", 0.0},
      {"h2o_target_lossy_ratio", 2.0},
      {"h2o_block_tokens", Number(block)},
      {"h2o_sink_tokens", Number(block)},
      {"h2o_recent_tokens", Number(block * std::max<uint64_t>(1, size.tokens / 8 / block))},
      {"h2o_trigger_min_tokens", Number(std::min(size.prompt_tokens, size.tokens / 2))},
      {"h2o_update_interval", Number(PowerOfTwo(decoded / 8, 1, 16))}};
  return spec;
}

// Collects from MNN's row the figures that kvtool's rules can name.
void Collect(const Json& figures, Measurements& measured) {
  for (const auto& [key, value] : figures.items()) {
    if (Engine().FindMetric(key) == nullptr) continue;
    if (value.is_boolean()) {
      measured.Set(key, value.get<bool>() ? 1 : 0);
    } else if (value.is_number()) {
      measured.Set(key, value.get<double>());
    }
  }
}

Value LogsSchema() { return LogsFields().Schema(); }

}  // namespace

std::vector<SizedCase> SizedCases(const DataSize& size) {
  std::vector<SizedCase> cases = {{StoredCase(size),
                                   "Does the cache compress as well as before, and is every byte "
                                   "restored? Nothing is evicted in this case."}};
  if (size.has_attention) {
    cases.push_back({EvictedCase(size),
                     "How large is the attention error if half of the cache is evicted? Nothing is "
                     "compressed in this case."});
  }
  return cases;
}

logs::EngineVerdict ReadLogs(const logs::EngineLogsInput& input) {
  logs::EngineVerdict verdict = logs::AnalyzeEngineLogs(input);
  for (CaseResult& result : verdict.cases) {
    result.spec.only_engine = result.spec.suite == kDemoSuite;
    Collect(result.logs->row, result.measured);
    Collect(result.logs->true_figures, result.measured);
    if (const auto noise = NumberIn(result.logs->true_figures, "decode_noise")) {
      result.measured.SetNoise("decode_drop_ratio", *noise);
      result.measured.SetNoise("decode_gate_tps",
                               *noise * result.measured.Value("decode_gate_tps").value_or(0),
                               fmt::format("its repetitions differ by {:.1f}%", 100 * *noise));
    }
  }
  return verdict;
}

const Fields<logs::EngineVerdict>& LogsFields() {
  using logs::BaselineNoise;
  using logs::EngineVerdict;
  static const Fields<BaselineNoise> noise = {
      {"samples", "Number of baselines",
       [](const BaselineNoise& of) { return of.tokens_per_second.size(); }},
      {"tokens_per_second", "Tokens/s of each baseline", &BaselineNoise::tokens_per_second},
      {"mean", "Mean tokens/s of the baselines", &BaselineNoise::mean},
      {"relative", "Half the spread of tokens/s / mean; null with fewer than two",
       &BaselineNoise::relative}};
  static const Fields<EngineVerdict> fields = {
      {"path", "Path of the logs as given", &EngineVerdict::path},
      {"engine_pass", "The engine's own verdict on the whole suite", &EngineVerdict::engine_pass},
      {"absent_cases", "Cases of the suite without anything to judge",
       &EngineVerdict::absent_cases},
      {"baseline_noise", "Noise of the baselines of the runtime cases",
       &EngineVerdict::baseline_noise, noise},
      {"notes", "Remarks on the logs", &EngineVerdict::notes}};
  return fields;
}

const gate::Engine& Engine() {
  static const gate::Engine engine = {.name = "mnn",
                                      .runtimes = kRuntimes,
                                      .modes = kModes,
                                      .mode_param = kModeParam,
                                      .switch_param = "h2o_lossless_enable",
                                      .params = kParams,
                                      .metrics = GateMetrics(),
                                      .baseline_rules = kBaselineRules,
                                      .suites = kSuites,
                                      .case_names = CaseNames(),
                                      .suite_case = BuildSuiteCase,
                                      .rules_of = ListRules,
                                      .report = {.title = "H2O final Summary",
                                                 .columns = kColumns,
                                                 .pairs = kPairs,
                                                 .history = kHistory,
                                                 .remarks = kRemarks,
                                                 .row = MakeRow,
                                                 .row_schema = RowSchema,
                                                 .log_figures = LogFigureSchemas,
                                                 .logs_schema = LogsSchema,
                                                 .line = logs::SuiteLine,
                                                 .read_row = ReadRow}};
  return engine;
}

}  // namespace kv::mnn
