// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The document kvtool.blend: fields of chunks, layers, the curve, faults and leaks.
#include "lib/engines/cacheblend/report.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv::blend {
namespace {

// Converts a float to the double that prints the same digits, so that a score of 0.1f is 0.1.
std::optional<double> IfFinite(const std::optional<float>& value) {
  return value && std::isfinite(*value) ? std::optional(ShortestDouble(*value)) : std::nullopt;
}

// Returns the numbers with null for those that are not finite.
std::vector<std::optional<double>> OrNulls(const std::vector<double>& numbers) {
  return {numbers.begin(), numbers.end()};
}

const Report& Whole(const Report& of) { return of; }

const KvRows::Layer& FirstLayer(const Report& of) { return of.caches.layers().front(); }

const Rope* FirstRope(const Report& of) {
  return of.caches.rope() ? &of.caches.rope()->Of(FirstLayer(of).index) : nullptr;
}

std::optional<std::string> GetRopeStyle(const Report& of) {
  const Rope* rope = FirstRope(of);
  return rope == nullptr ? std::nullopt : std::optional(std::string(Name(rope->pairs)));
}

std::optional<double> GetRopeTheta(const Report& of) {
  const Rope* rope = FirstRope(of);
  if (rope == nullptr || rope->scaling.kind == RopeScaling::Kind::kGiven) return std::nullopt;
  return rope->theta;
}

std::optional<uint32_t> GetRotaryDim(const Report& of) {
  const Rope* rope = FirstRope(of);
  return rope == nullptr ? std::nullopt : std::optional(rope->CountRotated(FirstLayer(of).k_dim));
}

std::optional<std::string> GetRopeScaling(const Report& of) {
  const Rope* rope = FirstRope(of);
  if (rope == nullptr || rope->scaling.kind == RopeScaling::Kind::kNone) return std::nullopt;
  return WithUnderscores(Name(rope->scaling));
}

std::optional<std::vector<double>> ListLayerThetas(const Report& of) {
  if (!of.caches.rope() || of.caches.rope()->layers.empty()) return std::nullopt;
  std::vector<double> thetas;
  for (const KvRows::Layer& layer : of.caches.layers())
    thetas.push_back(of.caches.rope()->Of(layer.index).theta);
  return thetas;
}

const Fields<Report>& RopeFields() {
  static const Fields<Report> fields = {
      {"style", "Which dimensions are paired: halves (neox) or neighbours (gptj)", GetRopeStyle,
       OneOf("neox", "gptj")},
      {"theta", "Base of the frequencies; null if they were given, or no key had to be rotated",
       GetRopeTheta},
      {"rotary_dim", "Number of dimensions of a head that are rotated", GetRotaryDim},
      {"scaling", "Name of the frequency scaling; null: none, or no key had to be rotated",
       GetRopeScaling},
      {"layer_thetas", "Base of each layer, if layers have different bases", ListLayerThetas,
       Absent()},
      {"old_state", "Whether the chunks' keys were unrotated, or the positions that rotated them",
       [](const Report& of) { return Name(of.caches.old().state); },
       OneOf("unrotated", "rotated-local", "rotated-global", "rotated-at")},
      {"full_state", "Whether the full run's keys are rotated",
       [](const Report& of) { return of.caches.full().unrotated ? "unrotated" : "rotated"; },
       OneOf("rotated", "unrotated")}};
  return fields;
}

const Fields<Report>& ModelFields() {
  static const Fields<Report> fields = {
      {"layers", "Number of layers", [](const Report& of) { return of.caches.layers().size(); }},
      {"q_heads", "Number of query heads; null: no queries were given",
       [](const Report& of) {
         return of.extras.trace == nullptr ? std::nullopt
                                           : std::optional(of.extras.trace->query_heads);
       }},
      {"kv_heads", "Number of kv heads", [](const Report& of) { return FirstLayer(of).heads; }},
      {"head_dim", "Number of values of a head of K",
       [](const Report& of) { return FirstLayer(of).k_dim; }},
      {"dtype", "Element type of the caches",
       [](const Report& of) { return kv::Name(of.caches.dtype()); }},
      {"rope", "style to scaling are null if no key had to be rotated", Whole, RopeFields()}};
  return fields;
}

std::vector<ChunkOf> CollectChunks(const Report& of) {
  std::vector<ChunkOf> chunks;
  for (size_t i = 0; i < of.caches.old().chunks.size(); ++i) chunks.push_back({of, i});
  return chunks;
}

const Fields<ChunkOf>& ChunkFields() {
  static const Fields<ChunkOf> fields = {
      {"index", "Index of the chunk, from 0", &ChunkOf::index},
      {"file", "File of the chunk's cache", [](const ChunkOf& of) { return of.chunk().path; }},
      {"start", "Position of the chunk's first token in the prompt",
       [](const ChunkOf& of) { return of.chunk().start; }},
      {"length", "Tokens of the chunk", [](const ChunkOf& of) { return of.chunk().tokens; }},
      {"is_prefix", "Whether the chunk begins the prompt, so that its cache is exact",
       [](const ChunkOf& of) { return of.chunk().is_prefix(); }}};
  return fields;
}

const Fields<ChunkOf>& ChosenFields() {
  static const Fields<ChunkOf> fields = {
      {"index", "Index of the chunk", &ChunkOf::index},
      {"selected", "Tokens of the chunk that were selected by score", &ChunkOf::selected},
      {"share", "Selected tokens of the chunk / topk", &ChunkOf::share, {.least = 0, .most = 1}}};
  return fields;
}

const Fields<Report>& TokensFields() {
  static const Fields<Report> fields = {
      {"total", "Number of tokens", [](const Report& of) { return of.result.tokens; }},
      {"suffix", "Number of tokens of the question, which ends the prompt",
       [](const Report& of) { return of.result.request.suffix; }},
      {"covered", "Tokens covered by chunks; the others are the question, which has no old values",
       [](const Report& of) { return of.result.covered; }},
      {"chunks", "The chunks in the order of the prompt", CollectChunks, ChunkFields(), Items(1)}};
  return fields;
}

const Fields<Selection>& BoundaryFields() {
  static const Fields<Selection> fields = {
      {"kept_min", "Lowest kept score; null: no token was kept, or it is not finite",
       [](const Selection& of) { return IfFinite(of.kept_min); }},
      {"dropped_max", "Highest dropped score; null: no token was dropped, or it is not finite",
       [](const Selection& of) { return IfFinite(of.dropped_max); }},
      {"margin",
       "kept_min - dropped_max, 0 for a tie; null if either is null, or the difference is not "
       "finite",
       &Selection::margin},
      {"ties", "Tokens with the score kept_min, if one of them was dropped", &Selection::ties}};
  return fields;
}

const Fields<Filtered>& FilterFields() {
  static const Fields<Filtered> fields = {
      {"check_layer", "Number of the layer whose deviations filter",
       [](const Filtered& of) { return of.filter.layer; }},
      {"ratio",
       "Share of the scored tokens that is kept",
       [](const Filtered& of) { return of.filter.ratio; },
       {.least = 0, .most = 1}},
      {"topk", "Number of tokens that are kept by score", &Filtered::topk},
      {"indices", "Tokens that are recomputed after this layer, ascending", &Filtered::indices}};
  return fields;
}

const Fields<Result>& FilteredFields() {
  static const Fields<Result> fields = {
      {"compute_share",
       "Share of the prefill that is computed",
       &Result::filtered_compute_share,
       {.least = 0, .most = 1}},
      {"dev_v_remaining_frac", "Mean share of V's deviation left in the blended layers",
       [](const Result& of) { return of.filtered_left.v; }},
      {"dev_k_remaining_frac", "Mean share of K's deviation left in the blended layers",
       [](const Result& of) { return of.filtered_left.k; }}};
  return fields;
}

const Result* IfFiltered(const Report& of) {
  return of.result.filtered.empty() ? nullptr : &of.result;
}

// Returns the indices, unless they were written to a file.
std::optional<std::vector<uint64_t>> Listed(const ReportExtras& extras,
                                            const Selection& selection) {
  return extras.indices_file.empty() ? std::optional(selection.indices) : std::nullopt;
}

const Fields<Report>& SelectionFields() {
  static const Fields<Report> fields = {
      {"variant", "Engine whose rule selects, and the tensor whose deviations it reads",
       [](const Report& of) { return VariantName(of.result.request); },
       OneOf("cacheblend-v", "cacheblend-k", "lmcache-k", "lmcache-v", "k+v")},
      {"engine", "Engine whose code is replayed",
       [](const Report& of) { return Name(of.result.request.engine); },
       OneOf("cacheblend", "lmcache")},
      {"check_layer", "Number of the layer whose deviations select",
       [](const Report& of) { return of.result.request.check_layer; }},
      {"recomputed_fraction",
       "Share of the tokens that is recomputed",
       [](const Report& of) { return of.result.request.ratio; },
       {.least = 0, .most = 1}},
      {"topk", "Number of tokens selected by score: scored tokens * ratio, truncated",
       [](const Report& of) { return of.result.selection.topk; }},
      {"count", "Number of tokens that are recomputed, the forced suffix included",
       [](const Report& of) { return of.result.selection.indices.size(); }},
      {"score_dtype", "Element type in which scores are computed",
       [](const Report& of) { return kv::Name(of.result.request.emulate.value_or(DType::kF32)); },
       OneOf("f32", "f16", "bf16")},
      {"tie_rule", "Order of equal scores", [](const Report&) { return "lower-index"; },
       OneOf("lower-index")},
      {"boundary", "The scores on both sides of the cut",
       [](const Report& of) -> const Selection& { return of.result.selection; }, BoundaryFields()},
      {"filters",
       "Later check layers, each of which keeps some of the tokens chosen before; absent if there "
       "are none",
       [](const Report& of) { return IfFiltered(of) == nullptr ? nullptr : &of.result.filtered; },
       FilterFields(), Absent()},
      {"filtered", "Result of all check layers together; absent with a single check layer",
       IfFiltered, FilteredFields(), Absent()},
      {"nonfinite", "Number of scores of the check layer that are not finite",
       [](const Report& of) { return of.result.nonfinite; }},
      {"indices", "Recomputed tokens, ascending, the suffix last; null with --indices-out",
       [](const Report& of) { return Listed(of.extras, of.result.selection); }},
      {"indices_file", "File that took the indices, with --indices-out",
       [](const Report& of) { return IfAny(of.extras.indices_file); }, Absent()},
      {"per_chunk", "Chosen tokens, without the forced suffix", CollectChunks, ChosenFields()}};
  return fields;
}

const Fields<TensorDeviation>& DeviationFields() {
  using D = TensorDeviation;
  static const Fields<D> fields = {
      {"sum", "Sum over tokens, heads and dims of (full - old)^2", &D::sum, Nullable()},
      {"relative", "sqrt(sum / sum of full^2), of the whole tensor", &D::relative, Nullable()},
      {"rel_mean",
       "Mean of the tokens' relative deviations, sqrt(sum / sum of full^2) token by token",
       &D::rel_mean, Nullable()},
      {"rel_p50", "Median of the tokens' relative deviations", &D::rel_p50, Nullable()},
      {"rel_p90", "90th percentile of the tokens' relative deviations", &D::rel_p90, Nullable()},
      {"rel_p99", "99th percentile of the tokens' relative deviations", &D::rel_p99, Nullable()},
      {"rel_max", "Largest of the tokens' relative deviations", &D::rel_max, Nullable()},
      {"chunk_means",
       "Mean relative deviation of the tokens of each chunk; null where none is finite",
       [](const D& of) { return OrNulls(of.chunk_means); }},
      {"nonfinite", "Number of tokens whose relative deviation is not finite; they are left out",
       &D::nonfinite}};
  return fields;
}

struct LayerOf {
  const Report& report;
  const LayerDeviation& deviation;
  const LayerRanks& ranks;
};

// A tensor's deviation, with or without the list of tokens.
struct DeviationOf {
  const TensorDeviation& deviation;
  bool detail;
};

const Fields<DeviationOf>& DeviationOfFields() {
  static const Fields<DeviationOf> fields = {
      Fields<DeviationOf>::Inline(
          [](const DeviationOf& of) -> const TensorDeviation& { return of.deviation; },
          DeviationFields()),
      {"tokens", "With --detail: relative deviation of every token",
       [](const DeviationOf& of) {
         return of.detail ? std::optional(OrNulls(of.deviation.tokens)) : std::nullopt;
       },
       Absent()}};
  return fields;
}

const Fields<LayerOf>& LayerFields() {
  static const Fields<LayerOf> fields = {
      {"layer", "Number of the layer", [](const LayerOf& of) { return of.deviation.layer; }},
      {"dev_v", "Deviation of the chunks' V from that of the full run",
       [](const LayerOf& of) {
         return DeviationOf{of.deviation.v, of.report.extras.detail};
       },
       DeviationOfFields()},
      {"dev_k", "Deviation of the chunks' K from that of the full run",
       [](const LayerOf& of) {
         return DeviationOf{of.deviation.k, of.report.extras.detail};
       },
       DeviationOfFields()},
      {"overlap",
       "Overlap of the layer's own choice with the check layer's; null where the layer deviates by "
       "rounding only",
       [](const LayerOf& of) { return IfThere(of.ranks.with_check, &Overlap::share); }},
      {"jaccard", "Tokens in both choices / tokens in either; null if overlap is null",
       [](const LayerOf& of) { return IfThere(of.ranks.with_check, &Overlap::jaccard); }},
      {"spearman_prev",
       "Rank correlation of the layer's scores with those of the layer before; null: there is "
       "none, or it deviates by rounding only",
       [](const LayerOf& of) { return of.ranks.spearman_prev; }}};
  return fields;
}

std::vector<LayerOf> CollectBlendLayers(const Report& of) {
  std::vector<LayerOf> layers;
  for (size_t i = 0; i < of.result.layers.size(); ++i)
    layers.push_back({of, of.result.layers[i], of.result.ranks[i]});
  return layers;
}

const Fields<Remaining>& RemainingFields() {
  static const Fields<Remaining> fields = {
      {"dev_v_remaining_frac", "Share of the layer's squared deviation of V that is left",
       &Remaining::v, Nullable()},
      {"dev_k_remaining_frac", "Share of the layer's squared deviation of K that is left",
       &Remaining::k, Nullable()}};
  return fields;
}

auto OfAttention(double AttentionError::*member) {
  return [member](const CurveLayer& layer) { return IfThere(layer.attention, member); };
}

const Fields<CurveLayer>& CurveFigureFields() {
  static const Fields<CurveLayer> fields = {
      {"dev_v_remaining",
       "Remaining squared deviation of V, summed over all tokens, heads and dims",
       &CurveLayer::v_sum, Nullable()},
      {"dev_k_remaining",
       "Remaining squared deviation of K, summed over all tokens, heads and dims",
       &CurveLayer::k_sum, Nullable()},
      Fields<CurveLayer>::Inline(&CurveLayer::selected, RemainingFields()),
      {"attn_dev_l2",
       "Norm of the difference of attention probabilities, over heads, rows and columns; null: no "
       "queries",
       OfAttention(&AttentionError::dev_l2)},
      {"attn_out_rel_l2",
       "Norm of the difference of attention outputs over that of the full run's outputs; null: no "
       "queries",
       OfAttention(&AttentionError::out_rel_l2)},
      {"attn_out_cos_mean",
       "Mean over rows of the cosine of both outputs, all heads joined; null: no queries",
       OfAttention(&AttentionError::out_cos_mean)},
      {"oracle",
       "Remaining deviation if as many tokens are recomputed, chosen by the layer's own deviations",
       &CurveLayer::oracle, RemainingFields()},
      {"random", "Remaining deviation if as many tokens are recomputed, drawn at random",
       &CurveLayer::random, RemainingFields()},
      {"first_of_chunk",
       "Remaining deviation if as many tokens are recomputed, from the beginnings of the chunks",
       &CurveLayer::first_of_chunk, RemainingFields()}};
  return fields;
}

const Fields<CurveLayer>& CurveLayerFields() {
  static const Fields<CurveLayer> fields = {{"layer", "Number of the layer", &CurveLayer::layer},
                                            Fields<CurveLayer>::Inline(CurveFigureFields())};
  return fields;
}

struct PointOf {
  const Report& report;
  const CurvePoint& point;
};

std::vector<PointOf> BuildCurve(const Report& of) {
  std::vector<PointOf> points;
  for (const CurvePoint& point : of.result.curve) points.push_back({of, point});
  return points;
}

const Fields<PointOf>& PointFields() {
  static const Fields<PointOf> fields = {
      {"recomputed_fraction",
       "Share of the tokens that is recomputed",
       [](const PointOf& of) { return of.point.ratio; },
       {.least = 0, .most = 1}},
      {"topk", "Number of tokens selected by score",
       [](const PointOf& of) { return of.point.selection.topk; }},
      {"compute_share",
       "Share of a full prefill that is computed",
       [](const PointOf& of) { return of.point.compute_share; },
       {.least = 0, .most = 1}},
      {"indices", "Recomputed tokens, ascending, the suffix last; null with --indices-out",
       [](const PointOf& of) { return Listed(of.report.extras, of.point.selection); }},
      {"layers", "Blended layers",
       [](const PointOf& of) { return std::span<const CurveLayer>(of.point.layers); },
       CurveLayerFields()},
      {"mean", "Means over the blended layers",
       [](const PointOf& of) -> const CurveLayer& { return of.point.mean; }, CurveFigureFields()}};
  return fields;
}

auto OfLeak(double LeakError::*member) {
  return [member](const LayerLeak& leak) { return leak.error.*member; };
}

const Fields<LayerLeak>& LayerLeakFields() {
  static const Fields<LayerLeak> fields = {
      {"layer", "Number of the layer", &LayerLeak::layer},
      {"queries", "Number of queries that were measured, evenly spread",
       [](const LayerLeak& leak) { return leak.error.queries; }},
      {"leaked_mass_mean", "Mean share of attention that goes to keys of the future",
       OfLeak(&LeakError::leaked_mass_mean), Nullable()},
      {"leak_out_rel_l2", "Outputs with the bottom-right mask against those with the exact mask",
       OfLeak(&LeakError::leak_out_rel_l2), Nullable()},
      {"recomputed_out_rel_l2",
       "Outputs of recomputed queries, with the mask asked for, against the full run",
       [](const LayerLeak& leak) { return leak.error.against_full.out_rel_l2; }, Nullable()},
      {"recomputed_out_cos_mean",
       "Mean cosine of the outputs of recomputed queries, with the mask asked for, and the full "
       "run's",
       [](const LayerLeak& leak) { return leak.error.against_full.out_cos_mean; }, Nullable()}};
  return fields;
}

std::optional<double> LeakedMass(const Result& result) {
  if (result.leaks.empty()) return std::nullopt;
  double mass = 0;
  for (const LayerLeak& leak : result.leaks) mass += leak.error.leaked_mass_mean;
  return mass / static_cast<double>(result.leaks.size());
}

const Fields<Result>& LeakFields() {
  static const Fields<Result> fields = {
      {"extra_keys_mean",
       "Mean number of keys of the future that a recomputed query sees under the bottom-right mask",
       &Result::extra_keys_mean, Nullable()},
      {"leaked_mass_mean",
       "Mean share of attention that goes to keys of the future, mean of the layers; null: no "
       "queries",
       LeakedMass},
      {"layers", "The layers that have queries", &Result::leaks, LayerLeakFields()}};
  return fields;
}

auto Microseconds(double Controller::*member) {
  return [member](const Controller& plan) {
    return static_cast<uint64_t>(std::llround(plan.*member * 1e6));
  };
}

const Fields<Controller>& ControllerFields() {
  static const Fields<Controller> fields = {
      {"prefill_us", "Time of a full prefill as given, in microseconds",
       Microseconds(&Controller::prefill_seconds)},
      {"load_bytes_per_second", "Speed of loading as given, in bytes per second",
       &Controller::bytes_per_second, Nullable()},
      {"prefill_us_per_layer", "Time of the prefill of one layer, in microseconds",
       Microseconds(&Controller::prefill_seconds_per_layer)},
      {"load_us_per_layer", "Time in which one layer of the chunks is loaded, in microseconds",
       Microseconds(&Controller::load_seconds_per_layer)},
      {"hidden_fraction", "Share of the tokens that can be recomputed while a layer loads",
       &Controller::ratio_hide, Nullable()},
      {"recomputed_fraction",
       "Share of the tokens that the controller recomputes",
       &Controller::ratio,
       {.least = 0, .most = 1}}};
  return fields;
}

const Fields<Fault>& FaultFields() {
  static const Fields<Fault> fields = {
      {"name", "Name of the fault", &Fault::name,
       OneOf("suffix_len_zero", "suffix_len_one", "future_keys", "double_rotation",
             "old_layers_kept", "later_check_layers")},
      {"text", "What goes wrong, in words", &Fault::text},
      {"value", "Size of the fault, in the unit that the text names; null: no figure",
       &Fault::value}};
  return fields;
}

const Fields<GateResult>& GateFields() {
  static const Fields<GateResult> fields = {
      {"name",
       "The figure, the ratio and the layers that it is taken over, as "
       "\"dev_v_remaining_frac@0.16.mean\"",
       [](const GateResult& of) { return of.gate.Name(); }},
      {"value", "The figure; null: it was not measured, and the gate fails", &GateResult::value},
      {"op", "Whether the figure must be at most or at least the limit",
       [](const GateResult& of) { return of.gate.at_most ? "<=" : ">="; }, OneOf("<=", ">=")},
      {"limit", "Limit on the figure", [](const GateResult& of) { return of.gate.limit; }},
      {"pass", "Whether the figure is within the limit", &GateResult::pass}};
  return fields;
}

}  // namespace

bool ReportExtras::pass() const {
  for (const GateResult& gate : gates) {
    if (!gate.pass) return false;
  }
  return true;
}

const Fields<Report>& ReportFields() {
  static const Fields<Report> fields = {
      {"model", "Geometry of the model", Whole, ModelFields()},
      {"tokens", "The prompt", Whole, TokensFields()},
      {"selection", "The tokens that are recomputed at the ratio asked for", Whole,
       SelectionFields()},
      {"rows", "Recomputed rows are the full run's, so the remaining error is a lower bound",
       [](const Report&) { return "oracle"; }, OneOf("oracle")},
      {"mask",
       "Mask of the recomputed queries: exact, as in a prefill, or bottom-right, as in the "
       "engines' kernels",
       [](const Report& of) { return Name(of.result.request.mask); },
       OneOf("exact", "bottom-right")},
      {"layers", "How the chunks' caches deviate from the full run, layer by layer",
       CollectBlendLayers, LayerFields(), Items(1)},
      {"curve",
       "Remaining deviation at each ratio, ascending",
       BuildCurve,
       PointFields(),
       {.items = 1, .rows = true}},
      {"mask_leak", "Future keys that the mask of engines shows to recomputed queries",
       [](const Report& of) -> const Result& { return of.result; }, LeakFields()},
      {"controller", "What-if from --prefill-ms and --load-gbps",
       [](const Report& of) { return of.extras.controller; }, ControllerFields()},
      {"faults", "Faults of CacheBlend's code with this prompt",
       [](const Report& of) { return of.result.faults; }, FaultFields()},
      {"gates", "The limits asked for by --gate", [](const Report& of) { return of.extras.gates; },
       GateFields()},
      {"pass", "Whether all gates pass", [](const Report& of) { return of.extras.pass(); }}};
  return fields;
}

}  // namespace kv::blend
