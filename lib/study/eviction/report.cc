// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/report.h"

#include <algorithm>

#include "lib/core/base/utf8.h"

namespace kv::eviction {
namespace {

std::optional<uint64_t> SamplesIfAny(const PredictedKl& kl) {
  return kl.samples == 0 ? std::nullopt : std::optional(kl.samples);
}

// The documents of both causes differ in what they say without samples.
Fields<PredictedKl> MakeKlFields(Fields<PredictedKl>::Field samples) {
  return {
      {"method",
       "gradients: 1/2 of the squared sum over layers of g . (o' - o), with the trace's gradients; "
       "sensitivity: sum over layers of weight times 2 (1 - cosine)",
       [](const PredictedKl& kl) { return Name(kl.method); }, OneOf("gradients", "sensitivity")},
      {"nats", "As the method computes it, not calibrated", &PredictedKl::nats, AtLeast(0)},
      {"standard_error", "Of nats, from drawn rows and drawn next tokens; null: unknown",
       &PredictedKl::standard_error, Nullable(AtLeast(0))},
      {"expected_nats", "nats over the calibration's median", &PredictedKl::expected, AtLeast(0)},
      {"low_nats", "nats over p90: four fifths of the study's runs lie between low and high",
       &PredictedKl::low, AtLeast(0)},
      {"high_nats", "nats over p10", &PredictedKl::high, AtLeast(0)},
      {"rows", "Rows measured", &PredictedKl::rows, AtLeast(1)},
      {"of_rows", "Rows that there are", &PredictedKl::population, AtLeast(1)},
      std::move(samples),
      {"calibration", "Quantiles of predicted over real KL in the study (docs/closed-loop.md)",
       &PredictedKl::calibration, CalibrationFields()}};
}

const Fields<StepBytes>& StepFields() {
  static const Fields<StepBytes> fields = {
      {"token", "Position of the token decoded", &StepBytes::token},
      Fields<StepBytes>::Inline(BytesFields())};
  return fields;
}

// What was asked to stay, and what does at the end of the last step in a layer that evicts.
struct Budget {
  const KeepBudget& budget;
  uint64_t end;
};

const Fields<Budget>& BudgetFields() {
  static const Fields<Budget> fields = {
      {"text", "As given to --budget, or made of a ratio",
       [](const Budget& of) { return of.budget.Text(); }},
      {"share", "Of all tokens seen; null for a number of tokens",
       [](const Budget& of) {
         return of.budget.tokens ? std::nullopt : std::optional(of.budget.share);
       }},
      {"tokens", "Number of tokens; null for a share",
       [](const Budget& of) { return of.budget.tokens; }},
      {"tokens_at_end", "Tokens that may stay after the last step",
       [](const Budget& of) { return of.budget.At(of.end); }, AtLeast(1)}};
  return fields;
}

bool IsTraced(const ReplayResult& result, uint32_t layer) {
  return std::count(result.traced_layers.begin(), result.traced_layers.end(), layer) != 0;
}

struct Layer {
  const ReplayResult& result;
  const ReplayRun& run;
  const LayerSchedule& schedule;
  uint64_t length;              // at the end
  const LayerQuality* quality;  // null: not measured

  std::optional<std::vector<std::array<uint64_t, 2>>> Kept() const {
    for (const LayerPlan& plan : run.plans) {
      if (plan.layer == schedule.layer && plan.units == 1) {
        return RangesOf(plan.HeldBefore(0, result.end));
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
auto OfQuality(AttentionSummary LayerQuality::*member) {
  return [member](const Layer& layer) -> const AttentionSummary* {
    return layer.quality == nullptr ? nullptr : &(layer.quality->*member);
  };
}

const Fields<Layer>& LayerFields() {
  using Schedule = LayerSchedule;
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
      {"kept_fraction", "Share of the tokens that stays",
       [](const Layer& layer) {
         return static_cast<double>(layer.length) / static_cast<double>(layer.result.end);
       },
       Nullable()},
      {"kept",
       "[first, count] of each run of positions that stays, ascending; absent where kv heads "
       "differ",
       &Layer::Kept, Absent()},
      {"attention", "Attention of the layer over all measured rows; null if not measured",
       OfQuality(&LayerQuality::summary), AttentionFields()},
      {"evicting", "The same over the rows that lose something; null if not measured",
       OfQuality(&LayerQuality::evicting), AttentionFields()},
      {"heads", "Figures of each query head; absent if not measured", &Layer::Heads, HeadFields(),
       Absent()}};
  return fields;
}

StepBytes LastOf(const Run& of) { return of.run.steps.empty() ? StepBytes{} : of.run.steps.back(); }

std::vector<Layer> LayersOf(const Run& of) {
  std::vector<Layer> layers;
  for (const LayerSchedule& schedule : of.run.schedules) {
    const auto quality = std::ranges::find(of.run.layers, schedule.layer, &LayerQuality::layer);
    layers.push_back({of.report.result, of.run, schedule,
                      LengthWalk(schedule).At(of.report.result.end - 1),
                      quality == of.run.layers.end() ? nullptr : &*quality});
  }
  return layers;
}

template <typename Member>
auto OfRun(Member member) {
  return [member](const Run& of) { return std::invoke(member, of.run); };
}

std::optional<std::string> IfAny(std::string_view text) {
  return text.empty() ? std::nullopt : std::optional(std::string(text));
}

template <typename Member>
auto OfTrace(Member member) {
  return [member](const Report& of) { return std::invoke(member, of.trace); };
}

}  // namespace

std::vector<std::array<uint64_t, 2>> RangesOf(const KeepPlan& plan) {
  std::vector<std::array<uint64_t, 2>> ranges;
  for (const KeepRange& range : plan) ranges.push_back({range.begin, range.count});
  return ranges;
}

uint64_t PlanCursor::NextToken(size_t plan) const {
  const std::vector<Eviction>& events = run_.plans[plan].events;
  return next_[plan] < events.size() ? events[next_[plan]].token : UINT64_MAX;
}

void PlanCursor::EmitUpTo(uint64_t end, const Emit& emit) {
  for (;;) {
    uint64_t token = end;
    for (size_t i = 0; i < next_.size(); ++i) token = std::min(token, NextToken(i));
    if (token == end) return;
    for (size_t i = 0; i < next_.size(); ++i) {
      if (NextToken(i) != token) continue;
      const LayerPlan& plan = run_.plans[i];
      const Eviction& event = plan.events[next_[i]++];
      for (uint32_t unit = 0; unit < plan.units; ++unit) {
        emit({plan.layer, plan.units == 1 ? std::nullopt : std::optional(unit), event,
              plan.HeldBefore(unit, event.token + 1)});
      }
    }
  }
}

void ForEachPlanEvent(const ReplayRun& run, const PlanCursor::Emit& emit) {
  PlanCursor(run).EmitUpTo(UINT64_MAX, emit);
}

const Fields<PlanEvent>& PlanEventPartFields() {
  static const Fields<PlanEvent> fields = {
      {"layer", "Number of the layer", &PlanEvent::layer},
      {"kv_head", "KV head that the event is of; null: the whole layer", &PlanEvent::kv_head},
      {"kept", "[first, count] of each run of positions that stays, ascending",
       [](const PlanEvent& event) { return RangesOf(event.kept); }},
      {"length_before", "Tokens in the layer's cache before",
       [](const PlanEvent& event) { return event.eviction.length_before; }}};
  return fields;
}

const Fields<PlanEvent>& PlanEventFields() {
  static const Fields<PlanEvent> fields = {
      {"token", "Position of the token decoded",
       [](const PlanEvent& event) { return event.eviction.token; }},
      Fields<PlanEvent>::Inline(PlanEventPartFields())};
  return fields;
}

const Fields<Calibration>& CalibrationFields() {
  static const Fields<Calibration> fields = {
      {"p10", "10th percentile", &Calibration::p10, AtLeast(0)},
      {"median", "Median", &Calibration::median, AtLeast(0)},
      {"p90", "90th percentile", &Calibration::p90, AtLeast(0)}};
  return fields;
}

const Fields<PredictedKl>& PredictedKlFields(Cause cause) {
  static const Fields<PredictedKl> evicted = MakeKlFields(
      {"samples", "Next tokens drawn for a row; null without gradients", SamplesIfAny, AtLeast(1)});
  static const Fields<PredictedKl> quantised = MakeKlFields(
      {"samples", "Next tokens drawn for each row; 0 without gradients", &PredictedKl::samples});
  return cause == Cause::kEviction ? evicted : quantised;
}

const Fields<PaperParameters>& PaperFields() {
  using Paper = PaperParameters;
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
       [](const Paper& paper) { return paper.grow ? "grow" : "hold"; }, OneOf("hold", "grow")}};
  return fields;
}

const Fields<Report>& TraceFields() {
  static const Fields<Report> fields = {
      {"file", "Path of the trace as given", OfTrace(&AttentionTrace::path)},
      {"level", "What it recorded: queries, attention probabilities, or scores of blocks",
       [](const Report& of) { return WithUnderscores(Name(of.trace.level)); },
       OneOf("queries", "probabilities", "block_scores")},
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
      {"open_loop", "True: queries are those of the full cache, whatever was evicted",
       [](const Report&) { return true; }, OneOf(true)}};
  return fields;
}

const Fields<MeasuredRows>& MeasuredFields() {
  using Rows = MeasuredRows;
  static const Fields<Rows> fields = {
      {"measured", "Rows measured", [](const Rows& rows) { return rows.positions.size(); }},
      {"of", "Rows that there are", &Rows::population},
      {"sampled", "Whether they were drawn at random", &Rows::is_sample}};
  return fields;
}

std::string_view Name(WeightRule rule) { return rule == WeightRule::kSoftmax ? "exact" : "flash"; }

const Fields<StepBytes>& BytesFields() {
  static const Fields<StepBytes> fields = {
      {"full_bytes", "Bytes of K and V that all layers would hold without eviction",
       &StepBytes::full},
      {"kept_bytes", "Bytes of K and V that all layers hold", &StepBytes::kept},
      {"allocated_bytes", "Bytes of the buffers, more than kept_bytes where they never shrink",
       &StepBytes::allocated},
      {"ratio", "full_bytes over kept_bytes",
       [](const StepBytes& step) {
         return step.kept == 0 ? 1.0
                               : static_cast<double>(step.full) / static_cast<double>(step.kept);
       },
       Nullable()}};
  return fields;
}

Fields<Run> RunFields(const Fields<BlockConfig>& params, Fields<Run>::Field engine_report) {
  return {
      {"policy", "What chooses the tokens to keep", OfRun(&ReplayRun::policy)},
      {"same_as",
       "The policy that this one amounts to here, because it keeps what that one would; null: none",
       [](const Run& of) { return IfAny(of.run.same_as); }},
      {"target_ratio", "As asked for; null for a budget in tokens. The ratio reached is 'ratio'.",
       OfRun(&ReplayRun::target_ratio), Nullable()},
      {"budget", "What may stay of a layer that evicts; null on the mnn schedule.",
       [](const Run& of) {
         return of.run.budget ? std::optional(Budget{*of.run.budget, of.run.end}) : std::nullopt;
       },
       BudgetFields()},
      {"params", "The engine's parameters, limited as it limits them", OfRun(&ReplayRun::config),
       params},
      {"triggers", "Decisions of all layers, including those that evicted nothing",
       OfRun(&ReplayRun::triggers)},
      {"floor_dominated_triggers",
       "Of these, decisions that kept all because sink and recent blocks reach the target",
       OfRun(&ReplayRun::floor_dominated)},
      {"evictions", "Those that a later query is the poorer for.", OfRun(&ReplayRun::evictions)},
      {"nothing_evicted_because", "Why no token went; null if some did, or nothing should",
       [](const Run& of) { return IfAny(of.run.nothing_because); }},
      {"full_bytes",
       "Bytes of K and V that all layers would hold at the last step without eviction",
       [](const Run& of) { return LastOf(of).full; }},
      {"kept_bytes", "At the last step: on a budget when it is over, else when its query attends.",
       [](const Run& of) { return LastOf(of).kept; }},
      {"allocated_bytes",
       "Bytes of the buffers at the last step, more than kept_bytes where they never shrink",
       [](const Run& of) { return LastOf(of).allocated; }},
      {"ratio", "full_bytes over kept_bytes at the last step", OfRun(&ReplayRun::ratio),
       Nullable()},
      {"mean_ratio", "The same over all steps together, which the attention figures belong with",
       OfRun(&ReplayRun::mean_ratio), Nullable()},
      {"removed_fraction", "1 - 1 / ratio: share of the bytes that eviction saves",
       [](const Run& of) { return 1 - 1 / of.run.ratio(); }, Nullable()},
      std::move(engine_report),
      {"attention", "Attention over all measured rows against the full cache; null without quality",
       OfRun(&ReplayRun::quality), AttentionFields()},
      {"evicting", "attention over the rows that lose something; null without quality",
       OfRun(EvictingOf), EvictingFields()},
      {"predicted_kl",
       "KL(full || evicted) of the next token in nats, mean of the decode rows; null where nothing "
       "predicts nats",
       OfRun(&ReplayRun::predicted_kl), PredictedKlFields(Cause::kEviction)},
      {"deciles", "Attention by tenths of the decode steps; empty without quality",
       [](const Run& of) { return DecilesOf(of.run.layers, of.report.result.measured); },
       DecileFields()},
      {"layers", "Figures of each layer", LayersOf, LayerFields()},
      {"steps", "Bytes after each decoded token, with --detail",
       [](const Run& of) { return of.report.detail ? &of.run.steps : nullptr; }, StepFields(),
       Absent()}};
}

std::vector<Run> RunsOf(const Report& of) {
  std::vector<Run> runs;
  for (const ReplayRun& run : of.result.runs) runs.push_back({of, run});
  return runs;
}

}  // namespace kv::eviction
