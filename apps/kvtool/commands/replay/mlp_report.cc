// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The document and text of replay mlp: plan, outcome in csrc, and cost in attention.
#include "apps/kvtool/commands/replay/mlp_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

std::string_view Word(RawReason reason) {
  switch (reason) {
    case RawReason::kNone:
      return "";
    case RawReason::kFewGroups:
      return "too few groups";
    case RawReason::kNoImageWeights:
      return "no image MLPs in the weights";
  }
  return "";
}

struct Cut {
  const Segment& segment;
  uint32_t factor;
};

const Fields<Cut>& SegmentFields() {
  static const Fields<Cut> fields = {
      {"begin_token", "First token of the segment", [](const Cut& of) { return of.segment.begin; }},
      {"tokens", "Tokens of the segment", [](const Cut& of) { return of.segment.tokens; }},
      {"groups", "Groups that are compressed; 0: the segment stays raw",
       [](const Cut& of) { return of.segment.groups; }},
      {"raw_tail_tokens", "Tokens after the groups that are copied unchanged",
       [](const Cut& of) { return of.segment.tail(of.factor); }},
      {"new_tokens", "Tokens of the segment after the step",
       [](const Cut& of) { return of.segment.new_length(of.factor); }},
      {"raw_reason", "Why the segment stays raw; null if it is compressed or empty",
       [](const Cut& of) {
         const RawReason reason = of.segment.raw_reason;
         return reason == RawReason::kNone ? std::nullopt : std::optional(Word(reason));
       }}};
  return fields;
}

// Returns a quantile; without values it is left out, and if it is not finite it is null.
auto Quantile(double Distribution::*figure) {
  return [figure](const Distribution& of) {
    return of.count == 0 ? std::nullopt : std::optional(of.*figure);
  };
}

const Fields<Distribution>& DistributionFields() {
  static const FieldOptions quantile = {.absent = true, .nullable = true};
  static const Fields<Distribution> fields = {
      {"mean", "Mean of the values; null if there are none", &Distribution::mean, Nullable()},
      {"min", "Smallest value", Quantile(&Distribution::min), quantile},
      {"p1", "1% quantile", Quantile(&Distribution::p1), quantile},
      {"p5", "5% quantile", Quantile(&Distribution::p5), quantile},
      {"p50", "Median", Quantile(&Distribution::p50), quantile},
      {"p95", "95% quantile", Quantile(&Distribution::p95), quantile},
      {"max", "Largest value", Quantile(&Distribution::max), quantile},
      {"count", "Number of values, without NaN", &Distribution::count},
      {"nan_count", "Number of values that are NaN", &Distribution::nans}};
  return fields;
}

const Fields<AttentionSummary>& AttentionFields() {
  using Summary = AttentionSummary;
  static const Fields<Summary> top_k = [] {
    Fields<Summary> shares = {};
    static std::array<std::string, kTopK.size()> names, texts;
    for (size_t i = 0; i < kTopK.size(); ++i) {
      names[i] = fmt::to_string(kTopK[i]);
      texts[i] = fmt::format("Share of the {} largest values; null if not finite", kTopK[i]);
      shares.Add(
          {names[i], texts[i], [i](const Summary& of) { return of.top_k[i].mean; }, Nullable()});
    }
    return shares;
  }();
  static const Fields<Summary> fields = {
      {"rows", "Query rows", &Summary::rows},
      {"output_error", "|o - o'| / |o| of a row's attention output, heads concatenated",
       &Summary::output_error, DistributionFields()},
      {"output_error_frobenius", "|O - O'| / |O| over all rows; null where it is not finite",
       &Summary::output_error_frobenius, Nullable()},
      {"output_cosine", "Cosine between both outputs of a row, heads concatenated",
       &Summary::output_cosine, DistributionFields()},
      {"raw_mass", "Probability that the full cache gives to tokens that stay as they are",
       &Summary::mass, DistributionFields()},
      {"raw_mass_after", "Probability that the new cache gives to tokens that stay as they are",
       &Summary::changed_mass, DistributionFields()},
      {"kl", "KL(P' || P) in nats, with P summed over the tokens that a new token stands for",
       &Summary::kl, DistributionFields()},
      {"js", "Jensen-Shannon divergence of P' and P, in nats", &Summary::js, DistributionFields()},
      {"top_k_raw", "Mean fraction of the k most probable tokens that is unchanged, by k",
       std::identity(), top_k}};
  return fields;
}

struct HeadQuality {
  size_t head;
  const AttentionSummary& figures;
};

const Fields<HeadQuality>& HeadQualityFields() {
  using Head = HeadQuality;
  static const FieldOptions finite = {.nullable = true};
  static const Fields<Head> fields = {
      {"head", "Number of the query head", &Head::head},
      {"output_error_mean", "Mean of output_error over rows; null where it is not finite",
       [](const Head& of) { return of.figures.output_error.mean; }, finite},
      {"output_error_p95", "95% quantile of output_error; null where it is not finite",
       [](const Head& of) { return of.figures.output_error.p95; }, finite},
      {"output_cosine_p5", "5% quantile of output_cosine; null where it is not finite",
       [](const Head& of) { return of.figures.output_cosine.p5; }, finite},
      {"raw_mass_mean", "Mean of raw_mass over rows; null where it is not finite",
       [](const Head& of) { return of.figures.mass.mean; }, finite},
      {"raw_mass_after_mean", "Mean of raw_mass_after over rows; null where it is not finite",
       [](const Head& of) { return of.figures.changed_mass.mean; }, finite},
      {"kl_mean", "Mean of kl over rows, in nats; null where it is not finite",
       [](const Head& of) { return of.figures.kl.mean; }, finite}};
  return fields;
}

std::vector<HeadQuality> ListHeads(const MethodQuality::Layer& layer) {
  std::vector<HeadQuality> heads;
  for (const AttentionSummary& head : layer.heads) heads.push_back({heads.size(), head});
  return heads;
}

struct MethodAgainst {
  const MethodQuality& method;
  uint64_t bytes_full;
};

const char* PositionWord(bool moved) { return moved ? "new-len" : "original"; }

const Fields<MethodAgainst>& MethodFields() {
  using Method = MethodQuality;
  static const Fields<Method::Layer> layers = {
      {"layer", "Number of the layer", &Method::Layer::layer},
      {"all", "Figures over the layer's heads", &Method::Layer::all, AttentionFields()},
      {"heads", "Figures of each query head", ListHeads, HeadQualityFields()}};
  static const Fields<Method> own = {
      {"name", "Name of the method that shrinks the cache", &Method::name},
      {"description", "The method in words", &Method::description},
      {"tokens", "Tokens that this method leaves in each layer", &Method::tokens},
      {"bytes", "Bytes of K and V of the measured layers that this method leaves", &Method::bytes},
      {"positions",
       "new-len: queries are moved to positions from the new length on; original: they stay where "
       "they were",
       [](const Method& of) { return PositionWord(of.moved); }, OneOf("new-len", "original")},
      {"all", "Figures over all layers", &Method::all, AttentionFields()},
      {"layers", "Figures of each layer", &Method::layers, layers}};
  static const Fields<MethodAgainst> fields = {
      Fields<MethodAgainst>::Inline(
          [](const MethodAgainst& of) -> const Method& { return of.method; }, own),
      {"ratio", "bytes_full / bytes; null where either is 0",
       [](const MethodAgainst& of) {
         return Saving{of.bytes_full, of.method.bytes}.ratio();
       }},
      {"removed_fraction", "1 - bytes / bytes_full; null where either is 0",
       [](const MethodAgainst& of) {
         return Saving{of.bytes_full, of.method.bytes}.removed_fraction();
       }}};
  return fields;
}

std::vector<MethodAgainst> ListMethods(const StepQuality& quality) {
  std::vector<MethodAgainst> methods;
  for (const MethodQuality& method : quality.methods) {
    methods.push_back({method, quality.bytes_full});
  }
  return methods;
}

const Fields<MlpParams>& MlpParamsFields() {
  static const Fields<MlpParams> fields = {
      {"image_len", "Tokens of the image prefix, as given",
       [](const MlpParams& of) { return of.settings.image_len; }},
      {"factor", "Tokens of a group, as given; 0 or 1: as the weights say",
       [](const MlpParams& of) { return of.settings.factor; }},
      {"min_seq_len",
       "Least number of groups of a segment that is compressed, as given; 0: as the weights say",
       [](const MlpParams& of) { return of.settings.min_seq_len; }},
      {"dtype", "Type that the cache was converted to first; null: not converted",
       &MlpParams::dtype},
      {"weights_dtype", "Type of the weights in their file", &MlpParams::weights_dtype},
      {"weights_cast",
       "How weights are rounded to the type of the cache: to the nearest, or cut off as csrc does",
       &MlpParams::weights_cast, OneOf("nearest", "truncate")},
      {"compat", "csrc: do nothing where csrc would silently do nothing; none: plan by the rules",
       &MlpParams::compat, OneOf("none", "csrc")},
      {"positions",
       "Position of the next token that was asked for: new-len, the new length, or original, the "
       "length before",
       &MlpParams::positions, OneOf("new-len", "original")},
      {"trace", "Trace with recorded queries; null: no trace", &MlpParams::trace},
      {"dry_run", "Whether only the plan was made", &MlpParams::dry_run}};
  return fields;
}

const char* Giver(bool from_weights) { return from_weights ? "weights" : "flag"; }

const Fields<StepPlan>& StepPlanFields() {
  static const Value::List givers = {"weights", "flag"};
  static const Fields<StepPlan> fields = {
      {"layers", "Layers of the cache", &StepPlan::layers},
      {"tokens", "Tokens of a layer before the step, after --first-tokens", &StepPlan::tokens},
      {"image_tokens", "Tokens of the image prefix, at most the cache's", &StepPlan::image_len},
      {"factor", "Tokens of a group, which the step replaces by one token", &StepPlan::factor},
      {"factor_from",
       "Source of the factor: the weights or a flag",
       [](const StepPlan& of) { return Giver(of.factor_from_weights); },
       {.choices = givers}},
      {"min_groups", "Least number of groups of a segment that is compressed",
       &StepPlan::min_seq_len},
      {"min_groups_from",
       "Source of that number: the weights or a flag",
       [](const StepPlan& of) { return Giver(of.min_seq_len_from_weights); },
       {.choices = givers}},
      {"image", "The image prefix",
       [](const StepPlan& of) {
         return Cut{of.image, of.factor};
       },
       SegmentFields()},
      {"text", "The text after the image prefix",
       [](const StepPlan& of) {
         return Cut{of.text, of.factor};
       },
       SegmentFields()},
      {"new_tokens", "Tokens of a layer after the step", &StepPlan::new_length},
      {"bytes_before", "Bytes of K and V of all layers before the step", &StepPlan::bytes_before},
      {"bytes_after", "Bytes of K and V of all layers after the step", &StepPlan::bytes_after},
      {"ratio", "bytes_before / bytes_after; null where either is 0",
       [](const StepPlan& of) {
         return Saving{of.bytes_before, of.bytes_after}.ratio();
       }},
      {"removed_fraction", "1 - bytes_after / bytes_before; null where either is 0",
       [](const StepPlan& of) {
         return Saving{of.bytes_before, of.bytes_after}.removed_fraction();
       }},
      {"flop", "Floating-point operations of the step", &StepPlan::flop}};
  return fields;
}

const Fields<CsrcOutcome>& CsrcFields() {
  static const Fields<CsrcOutcome> fields = {
      {"effect",
       "compresses: as defined; nothing: it changes nothing; wrong_mlp: it applies the MLP of "
       "another prefix; loses_tokens: a segment is left out of the cache; half_written: some "
       "layers are overwritten and the old length returned; throws: an exception comes after some "
       "layers are overwritten",
       [](const CsrcOutcome& of) { return Name(of.effect); },
       OneOf("compresses", "nothing", "wrong_mlp", "loses_tokens", "half_written", "throws")},
      {"returned_tokens", "Length that csrc returns; 0 if it throws",
       &CsrcOutcome::returned_length},
      {"layers_overwritten", "Whether the values of each layer change",
       &CsrcOutcome::layers_overwritten},
      {"corrupts", "Whether the cache no longer holds what the returned length promises",
       &CsrcOutcome::corrupts},
      {"reason", "Reason, in one sentence; empty if csrc compresses", &CsrcOutcome::reason}};
  return fields;
}

const Fields<StepQuality>& StepQualityFields() {
  static const Fields<NormRatio> norms = {
      {"layer", "Number of the layer", &NormRatio::layer},
      {"k", "Norm of a compressed K token / mean norm of its sources; null: sources are zero",
       &NormRatio::k},
      {"v", "Norm of a compressed V token / mean norm of its sources; null: sources are zero",
       &NormRatio::v}};
  static const Fields<StepQuality> fields = {
      {"open_loop", "True: each layer gets the recorded cache, whatever earlier layers lost",
       [](const StepQuality&) { return true; }, OneOf(true)},
      {"queries",
       "keys-as-queries: keys of the last tokens are used as queries; recorded: the trace's",
       &StepQuality::queries, OneOf("keys-as-queries", "recorded")},
      {"query_rows", "Query rows of a layer", &StepQuality::query_rows},
      {"query_heads", "Query heads of a layer", &StepQuality::query_heads},
      {"positions", "Position of the next token that was measured; original where RoPE is unknown",
       [](const StepQuality& of) { return PositionWord(of.positions_moved); },
       OneOf("new-len", "original")},
      {"bytes_full", "Bytes of K and V of the measured layers before the step",
       &StepQuality::bytes_full},
      {"relative_norms",
       "Norm of the step's results divided by the norm of their sources, by layer",
       &StepQuality::norm_ratios, norms},
      {"methods",
       "The step first, then the other methods",
       ListMethods,
       MethodFields(),
       {.items = 1, .rows = true}}};
  return fields;
}

// A figure without values prints as "-", not as 0.
std::string Four(double value) { return std::isnan(value) ? "-" : fmt::format("{:.4f}", value); }
std::string Three(const std::optional<double>& value) {
  return value ? fmt::format("{:.3f}", *value) : "-";
}

size_t WorstHead(const MethodQuality::Layer& layer) {
  size_t worst = 0;
  for (size_t h = 1; h < layer.heads.size(); ++h) {
    // A head whose error is NaN counts as better than every other one.
    if (!(layer.heads[h].output_error.mean <= layer.heads[worst].output_error.mean) &&
        layer.heads[h].output_error.count > 0) {
      worst = h;
    }
  }
  return worst;
}

}  // namespace

const Fields<MlpResult>& MlpResultFields() {
  static const Fields<StepTiming> timing = {
      {"step_us", "Time of the step in microseconds", &StepTiming::step_us},
      {"gflops", "Speed of the step in 10^9 operations per second", &StepTiming::gflops,
       Nullable()},
      {"threads", "Threads of the step", &StepTiming::threads, AtLeast(1)}};
  static const Fields<WrittenCache> output = {
      {"path", "Name of the file or folder", &WrittenCache::path},
      {"format", "Format, as kvtool formats names it", &WrittenCache::format}};
  static const Fields<MlpResult> fields = {
      {"inputs", "The cache and the weights", &MlpResult::inputs, HashedFileFields(), Items(2)},
      {"params", "Parameters of the run", &MlpResult::params, MlpParamsFields()},
      {"plan", "Result of the step", &MlpResult::plan, StepPlanFields()},
      {"csrc",
       "What InfiniLM's own step would do; null when the snapshot is only a part of a cache.",
       &MlpResult::csrc, CsrcFields()},
      {"timing", "Times of the step; absent with --deterministic and in a dry run",
       &MlpResult::timing, timing, Absent()},
      {"quality",
       "Attention error of the step, beside other methods that save as much; absent with "
       "--no-quality and in a dry run",
       &MlpResult::quality, StepQualityFields(), Absent()},
      {"output", "What was written; with --output", &MlpResult::output, output, Absent()},
      {"warnings", "Warnings of the run", &MlpResult::warnings}};
  return fields;
}

std::string PlanText(const StepPlan& plan) {
  Table table({"segment", "tokens", "groups", "raw tail", "new", ""});
  const auto row = [&](const char* name, const Segment& segment) {
    if (segment.tokens == 0) return;
    table.Row({name, fmt::format("{}:{}", segment.begin, segment.begin + segment.tokens),
               fmt::to_string(segment.groups), fmt::to_string(segment.tail(plan.factor)),
               fmt::to_string(segment.new_length(plan.factor)),
               std::string(Word(segment.raw_reason))});
  };
  row("image", plan.image);
  row("text", plan.text);
  // A raw segment has a reason, unless the whole step was skipped.
  const bool left_out = plan.image.groups + plan.text.groups == 0 &&
                        plan.image.raw_reason == RawReason::kNone &&
                        plan.text.raw_reason == RawReason::kNone;
  if (left_out) return fmt::format("nothing is compressed: {} tokens\n", plan.tokens);
  return fmt::format(
      "groups of {} tokens{}, at least {} per segment{}\n{}{} tokens -> {} in {} layers, {} -> {}, "
      "{}\n",
      plan.factor, plan.factor_from_weights ? " (from the weights)" : "", plan.min_seq_len,
      plan.min_seq_len_from_weights ? " (from the weights)" : "", table.Text("  "), plan.tokens,
      plan.new_length, plan.layers, HumanBytes(plan.bytes_before), HumanBytes(plan.bytes_after),
      HumanRatio(plan.bytes_before, plan.bytes_after));
}

std::string CsrcText(const CsrcOutcome& outcome) {
  const auto& written = outcome.layers_overwritten;
  const auto count = std::count(written.begin(), written.end(), true);
  switch (outcome.effect) {
    case CsrcEffect::kCompresses:
      return fmt::format("compresses to {} tokens", outcome.returned_length);
    case CsrcEffect::kNothing:
      return fmt::format("changes nothing, returns {} and reports nothing: {}",
                         outcome.returned_length, outcome.reason);
    case CsrcEffect::kWrongMlp:
      return fmt::format("applies the wrong MLPs: {}", outcome.reason);
    case CsrcEffect::kLosesTokens:
      return fmt::format("returns {} and loses tokens: {}", outcome.returned_length,
                         outcome.reason);
    case CsrcEffect::kHalfWritten:
      return fmt::format(
          "overwrites {} of {} layers, then returns {} as if nothing had been done: {}", count,
          written.size(), outcome.returned_length, outcome.reason);
    case CsrcEffect::kThrows:
      return fmt::format("overwrites {} of {} layers, then throws: {}", count, written.size(),
                         outcome.reason);
  }
  return "";
}

std::string QualityText(const StepQuality& quality) {
  Table methods({"method", "tokens", "bytes", "output error", "1 - cosine", "row error p95",
                 "attention KL", "raw mass", "after"});
  for (const MethodQuality& method : quality.methods) {
    const AttentionSummary& all = method.all;
    methods.Row({method.name, fmt::to_string(method.tokens), HumanBytes(method.bytes),
                 Four(all.output_error_frobenius), Four(1 - all.output_cosine.mean),
                 Four(all.output_error.p95), Four(all.kl.mean), Four(all.mass.mean),
                 Four(all.changed_mass.mean)});
  }
  Table layers({"layer", "output error", "row error p95", "worst head", "its error", "raw mass",
                "after", "|K'|/|K|", "|V'|/|V|"});
  const MethodQuality& step = quality.methods.front();
  for (size_t i = 0; i < step.layers.size(); ++i) {
    const MethodQuality::Layer& layer = step.layers[i];
    const size_t worst = WorstHead(layer);
    const double its_error = layer.heads[worst].output_error.mean;
    layers.Row({fmt::to_string(layer.layer), Four(layer.all.output_error_frobenius),
                Four(layer.all.output_error.p95),
                std::isnan(its_error) ? "-" : fmt::to_string(worst), Four(its_error),
                Four(layer.all.mass.mean), Four(layer.all.changed_mass.mean),
                Three(quality.norm_ratios[i].k), Three(quality.norm_ratios[i].v)});
  }
  return fmt::format(
      "attention against the full cache: {} query rows x {} heads ({}), positions {}, open loop\n"
      "{}\nthe step, layer by layer\n{}",
      quality.query_rows, quality.query_heads, quality.queries,
      PositionWord(quality.positions_moved), methods.Text("  "), layers.Text("  "));
}

}  // namespace kv
