// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Measures every pair of types in every layer, and sums the figures of choices.
#include "lib/study/quantisation/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/study/attention/attention.h"

namespace kv::quantisation {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// The figures that are means over defined rows.
constexpr double PairFigures::*kMeans[] = {
    &PairFigures::output_error, &PairFigures::one_minus_cosine,
    &PairFigures::attention_kl, &PairFigures::mass_moved,
    &PairFigures::top8,         &PairFigures::top64};

// Returns NaN for every figure, since no row has one.
PairFigures Undefined(uint64_t rows, uint64_t undefined_rows) {
  PairFigures figures;
  for (const auto figure : kMeans) figures.*figure = kNothing;
  figures.rows = rows;
  figures.undefined_rows = undefined_rows;
  return figures;
}

struct PairMeans {
  DefinedMean cosine, kl, moved, top8, top64;
  double error2 = 0, norm2 = 0;
  uint64_t rows = 0, undefined = 0;

  void AddAttention(const PairRows& rows_of, size_t row) {
    kl.Add(rows_of.kl[row]);
    moved.Add(rows_of.moved[row]);
    top8.Add(rows_of.top8[row]);
    top64.Add(rows_of.top64[row]);
  }
  void AddOutput(double error, double norm, double one_minus_cosine) {
    ++rows;
    cosine.Add(one_minus_cosine);
    if (std::isnan(error)) {
      ++undefined;
      return;
    }
    error2 += error;
    norm2 += norm;
  }
  PairFigures Figures() const {
    // The relative error over zero outputs is 0 only if the error is 0.
    const double error =
        error2 == 0 ? (rows > undefined ? 0 : kNothing) : std::sqrt(error2 / norm2);
    return {error, cosine.Get(), kl.Get(), moved.Get(), top8.Get(), top64.Get(), rows, undefined};
  }
};

PairFigures ComputeFigures(const PairRows& rows) {
  PairMeans means;
  for (size_t row = 0; row < rows.kl.size(); ++row) {
    means.AddAttention(rows, row);
    if (rows.error2.empty()) continue;
    means.AddOutput(
        rows.error2[row], rows.norm2[row],
        1 - OutputCosine(rows.error2[row], rows.norm2[row], rows.changed2[row], rows.dot[row]));
  }
  return means.Figures();
}

// Averages all heads of a layer; the cosine of each row goes to `cosines`.
PairFigures ComputeFigures(const std::vector<PairRows>& heads, std::vector<double>& cosines) {
  PairMeans means;
  for (size_t row = 0; row < heads.front().kl.size(); ++row) {
    double error2 = 0, norm2 = 0, changed2 = 0, dot = 0;  // NaN if the figure of any head is
    for (const PairRows& head : heads) {
      means.AddAttention(head, row);
      if (head.error2.empty()) continue;
      error2 += head.error2[row];
      norm2 += head.norm2[row];
      changed2 += head.changed2[row];
      dot += head.dot[row];
    }
    if (heads.front().error2.empty()) continue;
    cosines.push_back(OutputCosine(error2, norm2, changed2, dot));
    means.AddOutput(error2, norm2, 1 - cosines.back());
  }
  return means.Figures();
}

// Sums the changes by the first `samples` gradients, those at the recorded state: types change a
// little everywhere, which gradients there see.
eviction::LogPChange SumChanges(const std::vector<PairRows>& heads, uint64_t samples) {
  eviction::LogPChange sum;
  for (const PairRows& head : heads) {
    eviction::LogPChange change{samples, head.kl.size(), {}};
    for (const std::vector<double>& sample : std::span(head.log_p_change).first(samples))
      change.values.insert(change.values.end(), sample.begin(), sample.end());
    sum.Add(change);
  }
  return sum;
}

bool IsFinite(const StoredLayer& stored, const TypePair& pair) {
  return (pair.k == TypePair::kFull || stored.k_stored[pair.k].not_finite == 0) &&
         (pair.v == TypePair::kFull || pair.v >= stored.v_stored.size() ||
          stored.v_stored[pair.v].not_finite == 0);
}

LayerFigures Describe(const LayerAttention& attention, const StoredLayer& stored,
                      const std::vector<TypePair>& pairs,
                      const std::vector<std::vector<PairRows>>& measured) {
  LayerFigures figures;
  figures.layer = attention.layer();
  figures.full_bytes = 2.0 * static_cast<double>(stored.k.size() + stored.v.size());
  for (const StoredSide& side : stored.k_stored) {
    figures.k_bytes.push_back(side.bytes);
    figures.k_snr.push_back(side.snr_db());
    figures.k_not_finite.push_back(side.not_finite);
  }
  for (const StoredSide& side : stored.v_stored) {
    figures.v_bytes.push_back(side.bytes);
    figures.v_snr.push_back(side.snr_db());
    figures.v_not_finite.push_back(side.not_finite);
  }
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    const std::vector<PairRows>& heads = measured[pair];
    figures.cosines.emplace_back();
    figures.all.push_back(ComputeFigures(heads, figures.cosines.back()));
    std::vector<PairFigures>& of_heads = figures.heads.emplace_back();
    for (const PairRows& head : heads) of_heads.push_back(ComputeFigures(head));
    if (!heads.front().log_p_change.empty()) {
      figures.changes.push_back(SumChanges(heads, attention.trace().gradients->recorded()));
    }
    if (IsFinite(stored, pairs[pair])) continue;
    // NaN or Inf was stored. Rows that do not see it say nothing of the type: there is no figure.
    const uint64_t rows = figures.all.back().rows;
    const PairFigures none = Undefined(rows, rows);
    figures.all.back() = none;
    std::fill(of_heads.begin(), of_heads.end(), none);
    if (!figures.changes.empty()) {
      std::vector<double>& values = figures.changes.back().values;
      std::fill(values.begin(), values.end(), kNothing);
    }
    std::fill(figures.cosines.back().begin(), figures.cosines.back().end(), kNothing);
  }
  return figures;
}

}  // namespace

double LayerFigures::BytesOf(const TypePair& pair) const {
  const double k_full = v_bytes.empty() ? full_bytes : full_bytes / 2;
  double bytes = pair.k == TypePair::kFull ? k_full : k_bytes[pair.k];
  if (!v_bytes.empty()) bytes += pair.v == TypePair::kFull ? full_bytes - k_full : v_bytes[pair.v];
  return bytes;
}

ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace& trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress) {
  if (trace.level != TraceLevel::kQueries) {
    throw Error(Finding::kTraceMismatch,
                "the trace has no queries, which show the effect of changed keys")
        .File(trace.path);
  }
  ReplayResult result;
  result.pairs = request.pairs;
  result.weights = request.weights;
  result.measured =
      eviction::ChooseRows(request.prompt_tokens, trace.end_position(), request.rows, request.seed);
  if (!request.weights.empty()) {
    result.kl_method = eviction::KlMethod::kSensitivity;
  } else if (trace.gradients && trace.gradients->recorded() > 0) {
    result.kl_method = eviction::KlMethod::kGradients;
  } else {
    result.lacks_recorded_state = trace.gradients.has_value();
  }
  StoreRequest store = request.store;
  store.first_tokens = request.prompt_tokens;
  if (progress != nullptr) progress->Begin(snapshot.kv_bytes());
  for (const LayerKv& layer : snapshot.layers) {
    const uint64_t bytes = layer.k.bytes() + (layer.v ? layer.v->bytes() : 0);
    const TraceLayer* rows = trace.Find(layer.index);
    if (rows == nullptr || !rows->queries) {
      result.missing_layers.push_back(layer.index);
      result.missing_bytes += 2.0 * static_cast<double>(layer.k.channels() * layer.k.tokens());
      if (layer.v)
        result.missing_bytes += 2.0 * static_cast<double>(layer.v->channels() * layer.v->tokens());
    } else {
      const LayerAttention attention(trace, *rows, layer);
      const StoredLayer stored =
          StoreLayer(attention, static_cast<uint32_t>(snapshot.layers.size()), store, pool);
      result.tokens = std::max(result.tokens, stored.tokens);
      result.layers.push_back(
          Describe(attention, stored, request.pairs,
                   MeasurePairs(attention, stored, store, request.pairs, result.measured, pool)));
      if (result.kl_method == eviction::KlMethod::kGradients && !eviction::HasChanges(attention))
        result.kl_method.reset();
    }
    if (progress != nullptr) progress->Advance(bytes);
  }
  if (result.layers.empty()) {
    throw Error(Finding::kTraceMismatch, "the trace has no queries of the snapshot's layers")
        .File(trace.path);
  }
  return result;
}

std::string WhyUnchanged(const ReplayRequest& request, const ReplayResult& result, uint32_t type,
                         bool is_key) {
  const StoreRequest& store = request.store;
  const auto bytes = is_key ? &LayerFigures::k_bytes : &LayerFigures::v_bytes;
  const bool is_same =
      std::all_of(result.layers.begin(), result.layers.end(), [&](const LayerFigures& layer) {
        return (layer.*bytes).empty() || (layer.*bytes)[type] == (layer.*bytes)[0];
      });
  if (!is_same) return {};
  const quant::CacheType& of = *(is_key ? store.k_types : store.v_types)[type];
  const char side = is_key ? 'K' : 'V';
  if (of.full_at_ends) {
    return fmt::format(
        "{}: {} of every measured layer stays in 16 bits, because the type never quantises a "
        "model's first two and last two layers",
        of.name, side);
  }
  if (of.has_tail) {
    return fmt::format("{}: {} of all {} tokens stays in 16 bits: the type leaves {} in full",
                       of.name, side, result.tokens,
                       is_key ? fmt::format("up to {} of the last tokens", quant::kTailTokens - 1)
                              : fmt::format("the last {}", quant::kTailTokens));
  }
  if (store.keep_first + store.keep_last < result.tokens) return {};
  return fmt::format("{}: --keep-first and --keep-last leave {} of all {} tokens in 16 bits",
                     of.name, side, result.tokens);
}

bool IsUnchanged(const ReplayRequest& request, const ReplayResult& result, const TypePair& pair) {
  const auto is_full = [&](uint32_t type, bool is_key) {
    return type == TypePair::kFull || type == 0 ||
           !WhyUnchanged(request, result, type, is_key).empty();
  };
  return (pair.k != 0 || pair.v != 0) && is_full(pair.k, true) && is_full(pair.v, false);
}

Outcome Evaluate(const ReplayResult& result, const std::vector<size_t>& choice) {
  KV_ASSERT(choice.size() == result.layers.size());
  Outcome outcome{result.missing_bytes, result.missing_bytes, {}, 0, {}};
  DefinedMean means[std::size(kMeans)];
  eviction::LogPChange change;
  std::vector<eviction::LayerQuality> qualities;
  for (size_t l = 0; l < result.layers.size(); ++l) {
    const LayerFigures& layer = result.layers[l];
    const PairFigures& figures = layer.all[choice[l]];
    outcome.bytes += layer.BytesOf(result.pairs[choice[l]]);
    outcome.full_bytes += layer.full_bytes;
    for (size_t i = 0; i < std::size(kMeans); ++i) means[i].Add(figures.*kMeans[i]);
    outcome.mean.rows += figures.rows;
    outcome.mean.undefined_rows += figures.undefined_rows;
    outcome.worst_output_error = std::fmax(outcome.worst_output_error, figures.output_error);
    if (result.kl_method == eviction::KlMethod::kGradients) change.Add(layer.changes[choice[l]]);
    if (result.kl_method == eviction::KlMethod::kSensitivity) {
      qualities.emplace_back();
      qualities.back().layer = layer.layer;
      qualities.back().step_output_cosine = layer.cosines[choice[l]];
    }
  }
  const bool is_lost =
      std::any_of(result.layers.begin(), result.layers.end(), [&](const auto& layer) {
        const PairFigures& figures = layer.all[choice[&layer - result.layers.data()]];
        return figures.rows > 0 && figures.rows == figures.undefined_rows;
      });
  if (is_lost) {  // a layer without outputs leaves the model without them
    outcome.mean = Undefined(outcome.mean.rows, outcome.mean.undefined_rows);
    outcome.worst_output_error = kNothing;
    return outcome;
  }
  for (size_t i = 0; i < std::size(kMeans); ++i) outcome.mean.*kMeans[i] = means[i].Get();
  if (result.kl_method == eviction::KlMethod::kGradients)
    outcome.kl = eviction::PredictKl(change, result.measured.population, result.measured.positions);
  if (result.kl_method == eviction::KlMethod::kSensitivity)
    outcome.kl = eviction::PredictKl(qualities, result.weights, result.measured.population,
                                     result.measured.positions);
  if (outcome.kl) outcome.kl->cause = eviction::Cause::kQuantisation;
  return outcome;
}

Outcome EvaluatePair(const ReplayResult& result, size_t pair) {
  return Evaluate(result, std::vector<size_t>(result.layers.size(), pair));
}

}  // namespace kv::quantisation
