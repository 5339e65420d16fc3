// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The document of a replay: fields of runs, layers, heads and deciles.
#include "lib/study/eviction/report.h"

#include <algorithm>

#include "lib/core/base/utf8.h"

namespace kv::eviction {
namespace {

// The distribution of an attention metric over rows, and the standard error of its mean.
struct Figure {
  const Distribution& of;
  double standard_error;
  double frobenius = Distribution::kNone, frobenius_error = Distribution::kNone;
};

using Statistic = double Distribution::*;

// Returns fields of these statistics and of the error of the mean.
Fields<Figure> ListStatistics(std::initializer_list<Statistic> statistics) {
  struct Row {
    Statistic statistic;
    std::string_view name, text;
  };
  static constexpr Row kRows[] = {
      {&Distribution::mean, "mean", "Mean; null if no row has the figure"},
      {&Distribution::p1, "p1", "1st percentile; null if no row has the figure"},
      {&Distribution::p5, "p5", "5th percentile; null if no row has the figure"},
      {&Distribution::p95, "p95", "95th percentile; null if no row has the figure"},
      {&Distribution::min, "min", "Smallest; null if no row has the figure"},
      {&Distribution::max, "max", "Largest; null if no row has the figure"}};
  Fields<Figure> fields = {};
  for (const Statistic statistic : statistics) {
    const Row& row = *std::ranges::find(kRows, statistic, &Row::statistic);
    const auto get = [statistic](const Figure& figure) { return figure.of.*statistic; };
    fields.Add({row.name, row.text, get, Nullable()});
  }
  fields.Add({"standard_error",
              "Standard error of the mean where rows were drawn, 0 where all were measured; null "
              "if unknown",
              &Figure::standard_error, Nullable(AtLeast(0))});
  return fields;
}

const Fields<Figure>& ErrorFields() {
  static const Fields<Figure> statistics =
      ListStatistics({&Distribution::mean, &Distribution::p95, &Distribution::max});
  static const Fields<Figure> fields = {
      Fields<Figure>::Inline(statistics),
      {"frobenius", "|O - O'| / |O| over all rows together; null if no row has it",
       &Figure::frobenius, Nullable()},
      {"frobenius_standard_error",
       "Standard error of frobenius, 0 where all rows were measured; null if unknown",
       &Figure::frobenius_error, Nullable(AtLeast(0))}};
  return fields;
}

std::optional<Figure> GetOutputError(const AttentionSummary& rows) {
  if (!rows.has_output) return std::nullopt;
  return Figure{rows.output_error, rows.standard_error.output_error, rows.output_error_frobenius,
                rows.standard_error.output_error_frobenius};
}

std::optional<Figure> GetOutputCosine(const AttentionSummary& rows) {
  if (!rows.has_output) return std::nullopt;
  return Figure{rows.output_cosine, rows.standard_error.output_cosine};
}

std::map<std::string, std::optional<double>> ListOverlaps(const AttentionSummary& rows) {
  std::map<std::string, std::optional<double>> overlaps;
  for (size_t i = 0; i < kTopK.size(); ++i) {
    overlaps[std::to_string(kTopK[i])] = rows.top_k[i].mean;
  }
  return overlaps;
}

const Fields<AttentionSummary>& HeadFigureFields() {
  using Rows = AttentionSummary;
  static const Fields<Rows> fields = {
      {"mass_mean", "Mean attention mass of the kept keys",
       [](const Rows& rows) { return rows.mass.mean; }, Nullable()},
      {"mass_p5", "5th percentile of the mass that is kept",
       [](const Rows& rows) { return rows.mass.p5; }, Nullable()},
      {"kl_mean", "Mean KL(P' || P) in nats: attention over kept keys against the full cache",
       [](const Rows& rows) { return rows.kl.mean; }, Nullable()},
      {"top_k_overlap_16", "Mean share of a row's 16 heaviest keys that is kept",
       [](const Rows& rows) { return rows.top_k[1].mean; }, Nullable()},
      {"output_error_mean", "Mean relative error of the head's output; absent without V",
       [](const Rows& rows) {
         return rows.has_output ? std::optional(rows.output_error.mean) : std::nullopt;
       },
       Absent(Nullable())},
      {"output_cosine_p5", "5th percentile of the cosine of the head's output; absent without V",
       [](const Rows& rows) {
         return rows.has_output ? std::optional(rows.output_cosine.p5) : std::nullopt;
       },
       Absent(Nullable())}};
  return fields;
}

const Fields<AttentionSummary>& EvictingHeadFields() {
  static const Fields<AttentionSummary> fields = {
      {"rows", "Number of rows that lose a key", &AttentionSummary::rows},
      Fields<AttentionSummary>::Inline(HeadFigureFields())};
  return fields;
}

const Fields<AttentionSummary>& AttentionFields() {
  using Rows = AttentionSummary;
  using D = Distribution;
  static const Fields<Figure> mass = ListStatistics({&D::mean, &D::p5, &D::p1, &D::min});
  static const Fields<Figure> cosine = ListStatistics({&D::mean, &D::p5, &D::min});
  static const Fields<Figure> kl = ListStatistics({&D::mean, &D::p95, &D::max});
  static const Fields<Figure> js = ListStatistics({&D::mean, &D::p95});
  static const Fields<Rows> fields = {
      {"rows", "Query rows described; a row is one query of one layer with all its heads",
       &Rows::rows},
      {"evicting_rows", "Rows that lose a key to which some head gave weight",
       &Rows::evicting_rows},
      {"undefined_rows", "Rows with a NaN figure, which are left out", &Rows::undefined_rows},
      {"mass", "Share of the full attention's mass that falls on kept keys, heads pooled",
       [](const Rows& rows) {
         return Figure{rows.mass, rows.standard_error.mass};
       },
       mass},
      {"output_error",
       "|o - o'| / |o| of a layer's attention outputs, heads concatenated; null without V",
       GetOutputError, ErrorFields()},
      {"output_cosine", "Cosine of a layer's attention outputs, heads concatenated; null without V",
       GetOutputCosine, cosine},
      {"kl",
       "KL(P' || P) in nats of attention over what is kept (P') and the full cache (P), heads "
       "pooled",
       [](const Rows& rows) {
         return Figure{rows.kl, rows.standard_error.kl};
       },
       kl},
      {"js", "Jensen-Shannon divergence of P' and P, heads pooled",
       [](const Rows& rows) {
         return Figure{rows.js, rows.standard_error.js};
       },
       js},
      {"top_k_overlap", "Mean share of a row's k heaviest keys that is kept, by k", ListOverlaps},
      {"nan_count", "Number of NaN values of mass, which are left out",
       [](const Rows& rows) { return rows.mass.nans; }}};
  return fields;
}

// The rows of a run that evict.
struct EvictingRows {
  const AttentionSummary& summary;
  std::vector<uint32_t> layers;
};

const Fields<EvictingRows>& EvictingFields() {
  static const Fields<EvictingRows> fields = {
      Fields<EvictingRows>::Inline(
          [](const EvictingRows& rows) -> const AttentionSummary& { return rows.summary; },
          AttentionFields()),
      {"layers", "Layers in which a measured row loses a key", &EvictingRows::layers}};
  return fields;
}

// Returns nothing if quality was not measured.
std::optional<EvictingRows> BuildEvictingRows(const ReplayRun& run) {
  if (!run.evicting) return std::nullopt;
  EvictingRows rows{*run.evicting, {}};
  for (const LayerQuality& layer : run.layers) {
    if (layer.evicting.rows > 0) rows.layers.push_back(layer.layer);
  }
  return rows;
}

// The figures of a query head.
struct Head {
  size_t head;
  const AttentionSummary &all, &evicting;
};

const Fields<Head>& HeadFields() {
  static const Fields<Head> fields = {
      {"head", "Number of the query head", &Head::head},
      Fields<Head>::Inline([](const Head& head) -> const AttentionSummary& { return head.all; },
                           HeadFigureFields()),
      {"evicting", "Figures of attention over the rows that lose a key",
       [](const Head& head) -> const AttentionSummary& { return head.evicting; },
       EvictingHeadFields()}};
  return fields;
}

// Means over a tenth of the decode steps, which show whether the loss grows over time.
struct Decile {
  uint64_t first_step = 0, steps = 0;
  double mass = 0;
  std::optional<double> output_error;
};

const Fields<Decile>& DecileFields() {
  static const Fields<Decile> fields = {
      {"first_step", "First decode step of this tenth of the steps, from 0", &Decile::first_step},
      {"steps", "Number of decode steps in this tenth", &Decile::steps},
      {"mass_mean", "Mean attention mass of the kept keys; null if no row has it", &Decile::mass,
       Nullable()},
      {"output_error_mean",
       "Mean relative error of attention outputs; null if no row has it, absent without V",
       &Decile::output_error, Absent(Nullable())}};
  return fields;
}

std::vector<Decile> ComputeDeciles(const std::vector<LayerQuality>& layers,
                                   const MeasuredRows& measured) {
  std::vector<Decile> deciles;
  if (layers.empty()) return deciles;
  const bool has_output = !layers.front().step_output_error.empty();
  size_t row = 0;
  constexpr uint64_t kTenths = 10;
  for (uint64_t d = 0; d < kTenths; ++d) {
    const uint64_t begin = measured.population * d / kTenths,
                   end = measured.population * (d + 1) / kTenths;
    DefinedMean mass, error;
    const size_t first = row;
    for (; row < measured.positions.size() && measured.positions[row] < measured.first + end;
         ++row) {
      for (const LayerQuality& layer : layers) {
        mass.Add(layer.step_mass[row]);
        if (!layer.step_output_error.empty()) error.Add(layer.step_output_error[row]);
      }
    }
    if (row == first) continue;
    deciles.push_back(
        {begin, end - begin, mass.Get(), has_output ? std::optional(error.Get()) : std::nullopt});
  }
  return deciles;
}

std::optional<uint64_t> SamplesIfAny(const PredictedKl& kl) {
  return kl.samples == 0 ? std::nullopt : std::optional(kl.samples);
}

std::optional<std::string_view> GetBasisIfAny(const PredictedKl& kl) {
  return kl.method == KlMethod::kGradients ? std::optional(Name(kl.basis)) : std::nullopt;
}

// The documents of eviction and of quantisation differ in their text for results without samples.
Fields<PredictedKl> MakeKlFields(Fields<PredictedKl>::Field samples) {
  return {
      {"method",
       "gradients: 1/2 of the squared sum over layers of g . (o' - o), with the trace's gradients; "
       "sensitivity: sum over layers of weight times 2 (1 - cosine)",
       [](const PredictedKl& kl) { return Name(kl.method); }, OneOf("gradients", "sensitivity")},
      {"basis",
       "States that the gradients were taken at: recorded, or with evicted keys; with both, those "
       "with evicted keys count two thirds; null without gradients",
       GetBasisIfAny, OneOf("recorded", "evicted", "both", nullptr)},
      {"nats", "Predicted nats of the method, not calibrated", &PredictedKl::nats, AtLeast(0)},
      {"standard_error",
       "Standard error of nats, from drawn rows and drawn next tokens; null: unknown",
       &PredictedKl::standard_error, Nullable(AtLeast(0))},
      {"expected_nats", "nats over the calibration's median", &PredictedKl::expected, AtLeast(0)},
      {"low_nats", "nats over p90: four fifths of the study's runs lie between low and high",
       &PredictedKl::low, AtLeast(0)},
      {"high_nats", "nats over p10", &PredictedKl::high, AtLeast(0)},
      {"rows", "Number of rows measured", &PredictedKl::rows, AtLeast(1)},
      {"of_rows", "Rows that could be measured", &PredictedKl::population, AtLeast(1)},
      std::move(samples),
      {"top_rows", "Positions of the rows that lose most, the largest loss first",
       &PredictedKl::top_rows},
      {"top_share", "Share of nats that top_rows lose; null: nothing is lost",
       &PredictedKl::top_share, Nullable(AtLeast(0))},
      {"calibration", "Quantiles of predicted over real KL in the study (docs/closed-loop.md)",
       &PredictedKl::calibration, CalibrationFields()}};
}

const Fields<StepBytes>& StepFields() {
  static const Fields<StepBytes> fields = {
      {"token", "Position of the token decoded", &StepBytes::token},
      Fields<StepBytes>::Inline(BytesFields())};
  return fields;
}

// The requested budget, and the tokens held at the end of the last step in a layer that evicts.
struct Budget {
  const KeepBudget& budget;
  uint64_t end;
};

const Fields<Budget>& BudgetFields() {
  static const Fields<Budget> fields = {
      {"text", "Budget as given, or derived from a ratio",
       [](const Budget& of) { return of.budget.Text(); }},
      {"share", "Share of all tokens seen; null for a number of tokens",
       [](const Budget& of) {
         return of.budget.tokens ? std::nullopt : std::optional(of.budget.share);
       }},
      {"tokens", "Number of tokens; null for a share",
       [](const Budget& of) { return of.budget.tokens; }},
      {"tokens_at_end", "Tokens that may be kept after the last step",
       [](const Budget& of) { return of.budget.At(of.end); }, AtLeast(1)}};
  return fields;
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
        return ListRanges(plan.HeldBefore(0, result.end));
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

// Turns pointers to members of a layer's schedule and quality into getters of the layer.
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
      {"traced", "Whether the trace has rows of the layer",
       [](const Layer& layer) {
         return std::ranges::count(layer.result.traced_layers, layer.schedule.layer) != 0;
       }},
      {"triggers", "Decisions of the layer, including those that evicted nothing",
       OfSchedule(&Schedule::triggers)},
      {"floor_dominated_triggers",
       "Decisions that kept all because sink and recent blocks reach the target",
       OfSchedule(&Schedule::floor_dominated)},
      {"evictions", "Evictions of the layer that change the result of a later query",
       [](const Layer& layer) { return layer.schedule.evictions_in_effect(layer.result.end); }},
      {"full_tokens", "Tokens of the sequence at the end",
       [](const Layer& layer) { return layer.result.end; }},
      {"kept_tokens", "Tokens that the layer holds at the end", &Layer::length},
      {"kept_fraction", "Share of the tokens that is kept",
       [](const Layer& layer) {
         return static_cast<double>(layer.length) / static_cast<double>(layer.result.end);
       },
       Nullable()},
      {"kept",
       "[first, count] of each run of positions that is kept, ascending; absent if kv heads differ",
       &Layer::Kept, Absent()},
      {"attention", "Attention of the layer over all measured rows; null if not measured",
       OfQuality(&LayerQuality::summary), AttentionFields()},
      {"evicting", "Figures of attention over the rows that lose a key; null if not measured",
       OfQuality(&LayerQuality::evicting), AttentionFields()},
      {"heads", "Figures of each query head; absent if not measured", &Layer::Heads, HeadFields(),
       Absent()}};
  return fields;
}

StepBytes LastStepBytes(const ReplayRun& run) {
  return run.steps.empty() ? StepBytes{} : run.steps.back();
}

std::vector<Layer> CollectRunLayers(const Run& of) {
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
auto OfTrace(Member member) {
  return [member](const Report& of) { return std::invoke(member, of.trace); };
}

}  // namespace

std::vector<std::array<uint64_t, 2>> ListRanges(const KeepPlan& plan) {
  std::vector<std::array<uint64_t, 2>> ranges;
  for (const KeepRange& range : plan) ranges.push_back({range.begin, range.count});
  return ranges;
}

const Fields<PlanEvent>& PlanEventPartFields() {
  static const Fields<PlanEvent> fields = {
      {"layer", "Number of the layer", &PlanEvent::layer},
      {"kv_head", "KV head of the event; null: the whole layer", &PlanEvent::kv_head},
      {"kept", "[first, count] of each run of positions that is kept, ascending",
       [](const PlanEvent& event) { return ListRanges(event.kept); }},
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
  static const Fields<Paper> fields = [] {
    Fields<Paper> all = {};
    for (const PaperParameter& parameter : PaperParameterTable()) {
      const auto add = [&](auto member) { all.Add({parameter.key, parameter.text, member}); };
      std::visit(add, parameter.value);
    }
    all.Add({"after_prompt",
             "Whether snapkv and pyramid hold their budget after the prompt, or grow as published",
             [](const Paper& paper) { return paper.grow ? "grow" : "hold"; },
             OneOf("hold", "grow")});
    return all;
  }();
  return fields;
}

const Fields<Report>& TraceFields() {
  static const Fields<Report> fields = {
      {"file", "Path of the trace as given", OfTrace(&AttentionTrace::path)},
      {"level", "Recorded data: queries, attention probabilities, or scores of blocks",
       [](const Report& of) { return WithUnderscores(Name(of.trace.level)); },
       OneOf("queries", "probabilities", "block_scores")},
      {"format", "Format of the trace",
       [](const Report& of) { return WithUnderscores(of.trace.format); }},
      {"engine", "Engine that recorded the trace; empty if not stated",
       OfTrace(&AttentionTrace::engine)},
      {"model", "Model of the trace; empty if not stated", OfTrace(&AttentionTrace::model)},
      {"layers", "Layers replayed", [](const Report& of) { return of.result.traced_layers; }},
      {"missing_layers", "Layers of the snapshot that the trace has no rows of",
       [](const Report& of) { return of.result.missing_layers; }},
      {"rows", "Query rows of a layer", OfTrace(&AttentionTrace::rows)},
      {"q_start", "Position of the first query row", OfTrace(&AttentionTrace::q_start)},
      {"query_heads", "Query heads of a layer", OfTrace(&AttentionTrace::query_heads)},
      {"kv_heads", "KV heads of a layer",
       [](const Report& of) { return of.snapshot.layers.front().k.heads; }},
      {"head_dim", "Values per head",
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
      {"of", "Rows that could be measured", &Rows::population},
      {"sampled", "Whether the rows were drawn at random", &Rows::is_sample}};
  return fields;
}

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

const Fields<ReplayRun>& OwnFields() {
  static const Fields<ReplayRun> fields = {
      {"policy", "What chooses the tokens to keep", &ReplayRun::policy},
      {"same_as",
       "The policy that this one equals here, because both keep the same tokens; null: none",
       [](const ReplayRun& run) { return IfAny(run.same_as); }},
      {"target_ratio", "Target ratio; null for a budget in tokens. The ratio reached is 'ratio'.",
       &ReplayRun::target_ratio, Nullable()},
      {"budget", "Budget of a layer that evicts; null on the mnn schedule.",
       [](const ReplayRun& run) {
         return run.budget ? std::optional(Budget{*run.budget, run.end}) : std::nullopt;
       },
       BudgetFields()},
      {"triggers", "Decisions of all layers, including those that evicted nothing",
       &ReplayRun::triggers},
      {"floor_dominated_triggers",
       "Decisions that kept all because sink and recent blocks reach the target",
       &ReplayRun::floor_dominated},
      {"ratio", "full_bytes over kept_bytes at the last step", &ReplayRun::ratio,
       Nullable(Heading("true ratio", format::AsFactor))},
      {"mean_ratio", "full_bytes over kept_bytes, both summed over all steps",
       &ReplayRun::mean_ratio, Nullable(Heading("mean ratio", format::AsFactor))},
      {"evictions", "Evictions that change the result of a later query.", &ReplayRun::evictions,
       Heading("evictions")},
      {"removed_fraction", "1 - 1 / ratio: share of the bytes that eviction saves",
       [](const ReplayRun& run) { return 1 - 1 / run.ratio(); }, Nullable()},
      {"nothing_evicted_because", "Why no token was evicted; null if some were, or none should be",
       [](const ReplayRun& run) { return IfAny(run.nothing_because); }},
      {"full_bytes",
       "Bytes of K and V that all layers would hold at the last step without eviction",
       [](const ReplayRun& run) { return LastStepBytes(run).full; }},
      {"kept_bytes",
       "Bytes of K and V held at the last step: with a budget after it, otherwise while its query "
       "attends.",
       [](const ReplayRun& run) { return LastStepBytes(run).kept; }},
      {"allocated_bytes",
       "Bytes of the buffers at the last step, more than kept_bytes where they never shrink",
       [](const ReplayRun& run) { return LastStepBytes(run).allocated; }},
      {"attention", "Attention over all measured rows against the full cache; null: not measured",
       &ReplayRun::quality, AttentionFields()},
      {"evicting", "Attention over the rows that lose a key; null if quality was not measured",
       BuildEvictingRows, EvictingFields()},
      {"predicted_kl",
       "KL(full || evicted) of the next token in nats, mean of the decode rows; null where nothing "
       "predicts nats",
       &ReplayRun::predicted_kl, PredictedKlFields(Cause::kEviction)}};
  return fields;
}

Fields<Run> RunFields(const Fields<BlockConfig>& params, Fields<Run>::Field engine_report) {
  return {
      Fields<Run>::Inline([](const Run& of) -> const ReplayRun& { return of.run; }, OwnFields()),
      {"params", "The engine's parameters, clamped as the engine does",
       [](const Run& of) { return of.run.config; }, params},
      std::move(engine_report),
      {"deciles", "Attention in each tenth of the decode steps; empty if quality was not measured",
       [](const Run& of) { return ComputeDeciles(of.run.layers, of.report.result.measured); },
       DecileFields()},
      {"layers", "Figures of each layer", CollectRunLayers, LayerFields()},
      {"steps", "Bytes after each decoded token, with --detail",
       [](const Run& of) { return of.report.detail ? &of.run.steps : nullptr; }, StepFields(),
       Absent()}};
}

std::vector<Run> ListRuns(const Report& of) {
  std::vector<Run> runs;
  for (const ReplayRun& run : of.result.runs) runs.push_back({of, run});
  return runs;
}

}  // namespace kv::eviction
