// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/number.h"
#include "lib/core/base/word.h"
#include "lib/engines/mnn/h2o/quality_report.h"

namespace kv::mnn::h2o {
namespace {

// A whole number without a fraction, any other as a float prints; a budget of tokens has no ratio.
Fields<eviction::BlockConfig>::Field Ratio(std::string_view name, std::string_view text,
                                           float eviction::BlockConfig::*member,
                                           bool nullable = true) {
  const auto get = [member](const eviction::BlockConfig& config) -> Value {
    const float value = config.*member;
    if (std::isnan(value)) return nullptr;
    const auto whole = static_cast<int64_t>(value);
    return value == static_cast<float>(whole) ? Value(whole) : Value(ShortestDouble(value));
  };
  const Value number = "number";
  const Value type =
      Value::Object{{"type", nullable ? Value(Value::List{number, "null"}) : number}};
  return {name, text, get, {.schema = type}};
}

const Fields<eviction::BlockConfig>& ConfigFields() {
  using Config = eviction::BlockConfig;
  static const Fields<Config> fields = {
      {"h2o_layer_start", "First layer that evicts", &Config::layer_start},
      {"h2o_layer_end", "Last layer that evicts, -1: the last one", &Config::layer_end},
      {"h2o_block_tokens", "Tokens per block, which is kept or evicted as a whole",
       &Config::block_tokens},
      {"h2o_sink_tokens", "First tokens that stay", &Config::sink_tokens},
      {"h2o_recent_tokens", "Last tokens that stay", &Config::recent_tokens},
      {"h2o_target_mode",
       "How the engine reads its target: adaptive by h2o_target_lossy_ratio, static by "
       "h2o_target_keep_ratio",
       [](const Config& config) {
         return config.target_mode == eviction::TargetMode::kStatic ? "static" : "adaptive";
       },
       {.choices = {"static", "adaptive"}}},
      Ratio("h2o_target_keep_ratio",
            "Target of mode static: share of the tokens that stays, 0 to 1",
            &Config::target_keep_ratio),
      Ratio("h2o_target_lossy_ratio",
            "Target of mode adaptive: ratio of tokens to kept tokens, at least 1",
            &Config::target_lossy_ratio),
      Ratio("h2o_ema_alpha", "Weight of a block's old score against that of the new step, 0 to 1",
            &Config::ema_alpha, false),
      {"h2o_update_interval",
       "Steps between two decisions: tokens in the design, layer calls in MNN's code",
       &Config::update_interval},
      {"h2o_trigger_min_tokens", "Shortest cache that is evicted from, in tokens",
       &Config::trigger_min_tokens}};
  return fields;
}

const Fields<eviction::PaperParameters>& PaperFields() {
  using Paper = eviction::PaperParameters;
  static const Fields<Paper> fields = {
      {"snapkv_window", "Last rows, which weigh the others and stay (snapkv, pyramid)",
       &Paper::window},
      {"snapkv_kernel", "Keys pooled to one score (snapkv, pyramid)", &Paper::kernel},
      {"pyramid_beta", "Mean budget over that of the last layer (pyramid)", &Paper::pyramid_beta},
      {"streaming_sinks", "First tokens that streaming keeps", &Paper::sinks},
      {"h2o_heavy_share", "Share of h2o's budget for heavy hitters; the rest is recent",
       &Paper::heavy_share},
      {"after_prompt",
       "Whether snapkv and pyramid hold their budget after the prompt, or grow as published",
       [](const Paper& paper) { return paper.grow ? "grow" : "hold"; },
       {.choices = {"hold", "grow"}}}};
  return fields;
}

const Fields<MnnReplay>& EngineReportFields() {
  static const Fields<MnnReplay> fields = {
      Fields<MnnReplay>::Inline(&MnnReplay::metrics, MetricsFields()),
      {"meta_previous",
       "Length that the engine's shared record has at the end, which follows the last layer only",
       &MnnReplay::meta_previous},
      {"plans_dropped", "Plans that no longer fitted the cache", &MnnReplay::plans_dropped}};
  return fields;
}

const Fields<StepBytes>& StepFields() {
  static const Fields<StepBytes> fields = {
      {"token", "Position of the token decoded", &StepBytes::token},
      Fields<StepBytes>::Inline(BytesFields())};
  return fields;
}

// What was asked to stay, and what does at the end of the last step in a layer that evicts.
struct Budget {
  const eviction::KeepBudget& budget;
  uint64_t end;
};

const Fields<Budget>& BudgetFields() {
  static const Fields<Budget> fields = {{"text", "As given to --budget, or made of a ratio",
                                         [](const Budget& of) { return of.budget.Text(); }},
                                        {"share", "Of all tokens seen; null for a number of tokens",
                                         [](const Budget& of) {
                                           return of.budget.tokens ? std::nullopt
                                                                   : std::optional(of.budget.share);
                                         }},
                                        {"tokens", "Number of tokens; null for a share",
                                         [](const Budget& of) { return of.budget.tokens; }},
                                        {"tokens_at_end",
                                         "Tokens that may stay after the last step",
                                         [](const Budget& of) { return of.budget.At(of.end); },
                                         {.least = 1}}};
  return fields;
}

bool IsTraced(const ReplayResult& result, uint32_t layer) {
  return std::count(result.traced_layers.begin(), result.traced_layers.end(), layer) != 0;
}

struct Layer {
  const ReplayResult& result;
  const ReplayRun& run;
  const eviction::LayerSchedule& schedule;
  uint64_t length;                        // at the end
  const eviction::LayerQuality* quality;  // null: not measured

  std::optional<std::vector<std::array<uint64_t, 2>>> Kept() const {
    for (const eviction::LayerPlan& plan : run.plans) {
      if (plan.layer == schedule.layer && plan.units == 1) {
        return eviction::RangesOf(plan.HeldBefore(0, result.end));
      }
    }
    return std::nullopt;
  }
  std::optional<std::vector<Head>> Heads() const {
    if (quality == nullptr) return std::nullopt;
    std::vector<Head> heads;
    for (size_t h = 0; h < quality->heads.size(); ++h) {
      heads.push_back({h, quality->heads[h], quality->evicting_heads[h]});
    }
    return heads;
  }
};

// Pointers to members of a layer's schedule and quality, as getters of the layer.
template <typename Member>
auto OfSchedule(Member member) {
  return [member](const Layer& layer) { return std::invoke(member, layer.schedule); };
}
auto OfQuality(AttentionSummary eviction::LayerQuality::*member) {
  return [member](const Layer& layer) -> const AttentionSummary* {
    return layer.quality == nullptr ? nullptr : &(layer.quality->*member);
  };
}

const Fields<Layer>& LayerFields() {
  using Schedule = eviction::LayerSchedule;
  static const Fields<Layer> fields = {
      {"layer", "Number of the layer", OfSchedule(&Schedule::layer)},
      {"in_range", "Whether the layer may evict", OfSchedule(&Schedule::in_range)},
      {"traced", "Whether the trace has rows of it",
       [](const Layer& layer) { return IsTraced(layer.result, layer.schedule.layer); }},
      {"triggers", "Its decisions, including those that evicted nothing",
       OfSchedule(&Schedule::triggers)},
      {"floor_dominated_triggers",
       "Of these, decisions that kept all because sink and recent blocks reach the target",
       OfSchedule(&Schedule::floor_dominated)},
      {"evictions", "Its evictions that a later query is the poorer for",
       [](const Layer& layer) { return layer.schedule.evictions_in_effect(layer.result.end); }},
      {"full_tokens", "Tokens of the sequence at the end",
       [](const Layer& layer) { return layer.result.end; }},
      {"kept_tokens", "Tokens that the layer holds at the end", &Layer::length},
      {"kept_fraction",
       "Share of the tokens that stays",
       [](const Layer& layer) {
         return static_cast<double>(layer.length) / static_cast<double>(layer.result.end);
       },
       {.nullable = true}},
      {"kept",
       "[first, count] of each run of positions that stays, ascending; absent where kv heads "
       "differ",
       &Layer::Kept,
       {.absent = true}},
      {"attention", "Attention of the layer over all measured rows; null if not measured",
       OfQuality(&eviction::LayerQuality::summary), AttentionFields()},
      {"evicting", "The same over the rows that lose something; null if not measured",
       OfQuality(&eviction::LayerQuality::evicting), AttentionFields()},
      {"heads",
       "Figures of each query head; absent if not measured",
       &Layer::Heads,
       HeadFields(),
       {.absent = true}}};
  return fields;
}

struct Run {
  const Report& report;
  const ReplayRun& run;

  StepBytes Last() const { return run.steps.empty() ? StepBytes{} : run.steps.back(); }
  std::vector<Layer> Layers() const {
    std::vector<Layer> layers;
    for (const eviction::LayerSchedule& schedule : run.schedules) {
      const auto quality =
          std::find_if(run.layers.begin(), run.layers.end(),
                       [&](const auto& each) { return each.layer == schedule.layer; });
      layers.push_back({report.result, run, schedule,
                        eviction::LengthWalk(schedule).At(report.result.end - 1),
                        quality == run.layers.end() ? nullptr : &*quality});
    }
    return layers;
  }
};

template <typename Member>
auto OfRun(Member member) {
  return [member](const Run& of) { return std::invoke(member, of.run); };
}

std::optional<std::string> IfAny(std::string_view text) {
  return text.empty() ? std::nullopt : std::optional(std::string(text));
}

const Fields<Run>& RunFields() {
  static const Fields<Run> fields = {
      {"policy", "What chooses the tokens to keep", OfRun(&ReplayRun::policy)},
      {"same_as",
       "The policy that this one amounts to here, because it keeps what that one would; null: none",
       [](const Run& of) { return IfAny(of.run.same_as); }},
      {"target_ratio",
       "As asked for; null for a budget in tokens. The ratio reached is 'ratio'.",
       OfRun(&ReplayRun::target_ratio),
       {.nullable = true}},
      {"budget", "What may stay of a layer that evicts; null on the mnn schedule.",
       [](const Run& of) {
         return of.run.budget ? std::optional(Budget{*of.run.budget, of.run.end}) : std::nullopt;
       },
       BudgetFields()},
      {"params", "The engine's parameters, limited as it limits them", OfRun(&ReplayRun::config),
       ConfigFields()},
      {"triggers", "Decisions of all layers, including those that evicted nothing",
       OfRun(&ReplayRun::triggers)},
      {"floor_dominated_triggers",
       "Of these, decisions that kept all because sink and recent blocks reach the target",
       OfRun(&ReplayRun::floor_dominated)},
      {"evictions", "Those that a later query is the poorer for.", OfRun(&ReplayRun::evictions)},
      {"nothing_evicted_because", "Why no token went; null if some did, or nothing should",
       [](const Run& of) { return IfAny(WhyNothing(of.report.result, of.run)); }},
      {"full_bytes",
       "Bytes of K and V that all layers would hold at the last step without eviction",
       [](const Run& of) { return of.Last().full; }},
      {"kept_bytes", "At the last step: on a budget when it is over, else when its query attends.",
       [](const Run& of) { return of.Last().kept; }},
      {"allocated_bytes",
       "Bytes of the buffers at the last step, more than kept_bytes where they never shrink",
       [](const Run& of) { return of.Last().allocated; }},
      {"ratio",
       "full_bytes over kept_bytes at the last step",
       OfRun(&ReplayRun::ratio),
       {.nullable = true}},
      {"mean_ratio",
       "The same over all steps together, which the attention figures belong with",
       OfRun(&ReplayRun::mean_ratio),
       {.nullable = true}},
      {"removed_fraction",
       "1 - 1 / ratio: share of the bytes that eviction saves",
       [](const Run& of) { return 1 - 1 / of.run.ratio(); },
       {.nullable = true}},
      {"engine_report",
       "What the engine itself reports at the end; null with engine exact and for other policies",
       [](const Run& of) { return of.run.mnn ? &*of.run.mnn : nullptr; }, EngineReportFields()},
      {"attention", "Attention over all measured rows against the full cache; null without quality",
       OfRun(&ReplayRun::quality), AttentionFields()},
      {"evicting", "attention over the rows that lose something; null without quality",
       OfRun(EvictingOf), EvictingFields()},
      {"predicted_kl",
       "KL(full || evicted) of the next token in nats, mean of the decode rows; null where nothing "
       "predicts nats",
       OfRun(&ReplayRun::predicted_kl), PredictedKlFields(eviction::Cause::kEviction)},
      {"deciles", "Attention by tenths of the decode steps; empty without quality",
       [](const Run& of) { return DecilesOf(of.run.layers, of.report.result.measured); },
       DecileFields()},
      {"layers", "Figures of each layer", &Run::Layers, LayerFields()},
      {"steps",
       "Bytes after each decoded token, with --detail",
       [](const Run& of) { return of.report.detail ? &of.run.steps : nullptr; },
       StepFields(),
       {.absent = true}}};
  return fields;
}

template <typename Member>
auto OfTrace(Member member) {
  return [member](const Report& of) { return std::invoke(member, of.trace); };
}

const Fields<Report>& TraceFields() {
  static const Fields<Report> fields = {
      {"file", "Path of the trace as given", OfTrace(&AttentionTrace::path)},
      {"level",
       "What it recorded: queries, attention probabilities, or scores of blocks",
       [](const Report& of) { return WithUnderscores(Name(of.trace.level)); },
       {.choices = {"queries", "probabilities", "block_scores"}}},
      {"format", "Format of the trace",
       [](const Report& of) { return WithUnderscores(of.trace.format); }},
      {"engine", "Engine that recorded it; empty if it does not say",
       OfTrace(&AttentionTrace::engine)},
      {"model", "Model that it is of; empty if it does not say", OfTrace(&AttentionTrace::model)},
      {"layers", "Layers replayed", [](const Report& of) { return of.result.traced_layers; }},
      {"missing_layers", "Layers of the snapshot that the trace has no rows of",
       [](const Report& of) { return of.result.missing_layers; }},
      {"rows", "Query rows of a layer", OfTrace(&AttentionTrace::rows)},
      {"q_start", "Position of the first query row", OfTrace(&AttentionTrace::q_start)},
      {"query_heads", "Query heads of a layer", OfTrace(&AttentionTrace::query_heads)},
      {"kv_heads", "KV heads of a layer",
       [](const Report& of) { return of.snapshot.layers.front().k.heads; }},
      {"head_dim", "Values of a head",
       [](const Report& of) { return of.snapshot.layers.front().k.head_dim; }},
      {"prompt_tokens", "Where prefill ends, in tokens",
       [](const Report& of) { return of.result.prompt; }},
      {"decode_steps", "Positions replayed after the prompt",
       [](const Report& of) { return of.result.end - of.result.prompt; }},
      {"undefined_rows", "Query rows with NaN or infinite values, in the whole trace",
       [](const Report& of) { return of.result.undefined.rows; }},
      {"undefined_gradient_rows", "Gradient rows with NaN or infinite values, in the whole trace",
       [](const Report& of) { return of.result.undefined_gradients.rows; }},
      {"open_loop",
       "True: queries are those of the full cache, whatever was evicted",
       [](const Report&) { return true; },
       {.choices = {true}}}};
  return fields;
}

template <typename Member>
auto OfRequest(Member member) {
  return [member](const Report& of) { return std::invoke(member, of.request); };
}

std::vector<std::string> BudgetTexts(const Report& of) {
  std::vector<std::string> texts;
  for (const eviction::KeepBudget& budget : of.request.budgets) texts.push_back(budget.Text());
  return texts;
}

const Fields<Report>& ParamsFields() {
  static const Fields<Report> fields = {
      {"engine",
       "exact: policies as their papers have them; design: MNN's published text; mnn: its code; "
       "mnn-r6: its older code",
       [](const Report& of) { return Name(of.result.engine); },
       {.choices = {"exact", "design", "mnn", "mnn-r6"}}},
      {"schedule",
       "paper: a budget is held at every step from the prompt's end on. mnn: a ratio of the cache "
       "as it is at each trigger.",
       [](const Report& of) { return Name(of.result.clock); },
       {.choices = {"paper", "mnn"}}},
      {"scores",
       "How attention becomes scores: exact softmax, or flash as MNN's kernel sums it",
       [](const Report& of) { return Name(of.result.weights); },
       {.choices = {"exact", "flash"}}},
      {"granularity",
       "Whether a plan is made per layer or per kv head",
       [](const Report& of) {
         return of.request.granularity == eviction::Granularity::kLayer ? "layer" : "kv-head";
       },
       {.choices = {"layer", "kv-head"}}},
      {"seed", "Seed of policy random and of the rows drawn", OfRequest(&ReplayRequest::seed)},
      {"quality_rows", "Most query rows of a layer to measure; 0: all",
       OfRequest(&ReplayRequest::quality_rows)},
      {"policies", "Policies, as resolved", OfRequest(&ReplayRequest::policies)},
      {"target_ratios", "Ratios asked for; empty with budgets", OfRequest(&ReplayRequest::targets)},
      {"budgets", "As given to --budget.", BudgetTexts},
      {"followed_the_trace",
       "Parameters of the engine that nobody gave and that the trace's length decided.",
       [](const Report& of) { return of.result.followed; }},
      {"paper", "Parameters of the papers' policies",
       [](const Report& of) { return of.result.paper; }, PaperFields()},
      {"re_rotated", "Whether streaming counted positions within its cache, as published",
       [](const Report& of) { return of.request.re_rotation.has_value(); }}};
  return fields;
}

const Fields<eviction::MeasuredRows>& MeasuredFields() {
  using Rows = eviction::MeasuredRows;
  static const Fields<Rows> fields = {
      {"measured", "Rows measured", [](const Rows& rows) { return rows.positions.size(); }},
      {"of", "Rows that there are", &Rows::population},
      {"sampled", "Whether they were drawn at random", &Rows::is_sample}};
  return fields;
}

std::vector<Run> RunsOf(const Report& of) {
  std::vector<Run> runs;
  for (const ReplayRun& run : of.result.runs) runs.push_back({of, run});
  return runs;
}

const Report& Whole(const Report& report) { return report; }

}  // namespace

std::string_view Name(WeightRule rule) { return rule == WeightRule::kSoftmax ? "exact" : "flash"; }

const Fields<MnnMetrics>& MetricsFields() {
  using M = MnnMetrics;
  static const Fields<M> fields = {
      {"h2o_keep_ratio",
       "Kept tokens over length, of the last plan of any layer",
       &M::keep_ratio,
       {.nullable = true}},
      {"h2o_lossy_ratio",
       "Bytes before over bytes kept and those of the plan itself, of the last plan of any layer",
       &M::lossy_ratio,
       {.nullable = true}},
      {"h2o_target_keep_effective",
       "Target of the last decision as a share of the length, not below the floor",
       &M::target_keep_effective,
       {.nullable = true}},
      {"h2o_floor_keep_by_recent_sink",
       "Share of the length that sink and recent blocks alone keep",
       &M::floor_keep,
       {.nullable = true}},
      {"h2o_block_quantized_keep",
       "Target of the last decision as a share of the length, rounded up to whole blocks",
       &M::quantized_keep,
       {.nullable = true}},
      {"h2o_last_evict_tokens", "Tokens that the last decision evicts", &M::last_evict_tokens},
      {"h2o_total_evict_tokens",
       "Tokens evicted by all plans so far, counted per layer when planned",
       &M::total_evict_tokens}};
  return fields;
}

const Fields<StepBytes>& BytesFields() {
  static const Fields<StepBytes> fields = {
      {"full_bytes", "Bytes of K and V that all layers would hold without eviction",
       &StepBytes::full},
      {"kept_bytes", "Bytes of K and V that all layers hold", &StepBytes::kept},
      {"allocated_bytes", "Bytes of the buffers, more than kept_bytes where they never shrink",
       &StepBytes::allocated},
      {"ratio",
       "full_bytes over kept_bytes",
       [](const StepBytes& step) {
         return step.kept == 0 ? 1.0
                               : static_cast<double>(step.full) / static_cast<double>(step.kept);
       },
       {.nullable = true}}};
  return fields;
}

const Fields<Report>& ReportFields() {
  static const Fields<Report> fields = {
      {"trace", "The attention trace that was replayed", Whole, TraceFields()},
      {"params", "What was asked for", Whole, ParamsFields()},
      {"quality_rows", "Query rows of a layer that the attention figures are of",
       [](const Report& of) { return of.result.measured; }, MeasuredFields()},
      {"runs", "One entry per policy and target", RunsOf, RunFields(), {.items = 1, .rows = true}},
      {"notes",
       "What the figures mean here: a rule that comes down to another, a budget met in blocks, "
       "rows that the trace lacks.",
       [](const Report& of) { return of.result.notes; }},
      {"warnings", "Warnings of the run", [](const Report& of) { return of.result.warnings; }}};
  return fields;
}

std::string WhyNothing(const ReplayResult& result, const ReplayRun& run) {
  if (run.policy == "full" || run.evictions() > 0) return {};
  const eviction::BlockConfig& config = run.config;
  const uint64_t steps = result.end - result.prompt;
  if (run.budget && run.budget->At(result.end) >= result.end) {
    return fmt::format("the budget of {} holds all {} tokens", run.target_text(), result.end);
  }
  bool in_range = false, traced = false;
  for (const eviction::LayerSchedule& schedule : run.schedules) {
    in_range |= schedule.in_range;
    traced |= schedule.in_range && IsTraced(result, schedule.layer);
  }
  if (!traced) {
    return fmt::format("no layer {}: h2o_layer_start {}, h2o_layer_end {}",
                       in_range ? "with rows in the trace is in the range" : "is in the range",
                       config.layer_start, config.layer_end);
  }
  if (run.budget && eviction::FindPolicy(run.policy)->at_prompt_end && result.paper.grow) {
    return fmt::format("{} compresses the prompt alone, of which {} holds all {} tokens",
                       run.policy, run.target_text(), result.prompt);
  }
  if (run.budget && result.end >= static_cast<uint64_t>(config.trigger_min_tokens)) {
    return fmt::format("{} is above the budget after the last row only, and no query follows it",
                       run.policy);
  }
  if (run.triggers() > 0) {
    return fmt::format(
        "{} triggers, but sink and recent blocks alone reach the target: h2o_sink_tokens {}, "
        "h2o_recent_tokens {}, h2o_block_tokens {}",
        run.triggers(), config.sink_tokens, config.recent_tokens, config.block_tokens);
  }
  if (result.end < static_cast<uint64_t>(config.trigger_min_tokens)) {
    return fmt::format(
        "no trigger fired: the cache never reaches h2o_trigger_min_tokens {}, it ends at {}",
        config.trigger_min_tokens, result.end);
  }
  return fmt::format("no trigger fired: h2o_update_interval {} is longer than the {} decode steps",
                     config.update_interval, steps);
}

}  // namespace kv::mnn::h2o
