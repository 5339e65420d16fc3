// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Searches types by layer within limits, prints the outcome, and fills the part "advice" of
// kvtool.quant.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "apps/kvtool/commands/replay/quant_plan.h"
#include "lib/study/quantisation/report.h"

namespace kv {

using quantisation::Outcome;
using quantisation::ReplayRequest;
using quantisation::ReplayResult;

constexpr uint32_t kBlockValues = 32;  // block size of llama.cpp's quantised cache types

void PrintOutcome(Console& console, std::string_view what, const Outcome& outcome,
                  const ReplayResult& result) {
  console.Line(fmt::format(
      "{}: {:.3f}x, {:.4g} bytes a token, mean layer error {}{}", what, outcome.ratio(),
      outcome.bytes / static_cast<double>(result.tokens),
      quantisation::ShareText(outcome.mean.output_error),
      outcome.kl ? fmt::format(", {} nats", quantisation::ExpectedText(outcome)) : std::string()));
}

namespace {

// Returns a warning about rows without figures; empty if there are none.
std::string RemarkOnUndefined(const ReplayResult& result) {
  uint64_t rows = 0, undefined = 0;
  std::vector<uint32_t> lost;
  for (const quantisation::LayerFigures& layer : result.layers) {
    const quantisation::PairFigures& whole = layer.all.front();  // figures of the recorded cache
    rows += whole.rows;
    undefined += whole.undefined_rows;
    if (whole.rows > 0 && whole.rows == whole.undefined_rows) lost.push_back(layer.layer);
  }
  if (undefined == 0) return {};
  return fmt::format(
      "{} of {} measured rows are undefined, by NaN or Inf, and left out{}", undefined, rows,
      lost.empty() ? ""
                   : fmt::format("; no other row is left in layers {}, so the model has no figures",
                                 fmt::join(lost, ", ")));
}

}  // namespace

std::vector<std::string> QuantWarnings(const Snapshot& snapshot, const ReplayRequest& request,
                                       const ReplayResult& result) {
  std::vector<std::string> warnings;
  const uint32_t dim = snapshot.layers.front().k.head_dim;
  const auto is_block = [](const quant::CacheType* type) {
    return type->dtype && IsBlockQuantised(*type->dtype);
  };
  const auto has_block = [&](const std::vector<const quant::CacheType*>& types) {
    return std::any_of(types.begin(), types.end(), is_block);
  };
  if (dim % kBlockValues != 0 &&
      (has_block(request.store.k_types) || has_block(request.store.v_types))) {
    warnings.push_back(
        fmt::format("types with blocks of {} do not fit heads of {} values: llama.cpp refuses them "
                    "with flash attention and computes wrong scores without it; these figures "
                    "assume an engine that reads them correctly",
                    kBlockValues, dim));
  }
  std::string blocks = RemarkOnBlocks(snapshot);
  if (!blocks.empty()) warnings.push_back(std::move(blocks));
  if (!result.missing_layers.empty()) {
    warnings.push_back(fmt::format("the trace has no queries of layers {}, which count in full",
                                   fmt::join(result.missing_layers, ", ")));
  }
  std::string undefined = RemarkOnUndefined(result);
  if (!undefined.empty()) warnings.push_back(std::move(undefined));
  for (const bool is_key : {true, false}) {
    const auto& types = is_key ? request.store.k_types : request.store.v_types;
    for (uint32_t i = 1; i < types.size(); ++i) {  // index 0 is the unchanged cache
      std::string why = WhyUnchanged(request, result, i, is_key);
      if (!why.empty()) warnings.push_back(std::move(why));
    }
  }
  const auto count = [&](const auto& types, const auto& of_layer, char side) {
    for (size_t i = 0; i < types.size(); ++i) {
      uint64_t values = 0;
      for (const quantisation::LayerFigures& layer : result.layers)
        values += i < (layer.*of_layer).size() ? (layer.*of_layer)[i] : 0;
      if (values > 0) {
        warnings.push_back(fmt::format("{}: {} values of {} are NaN or infinite once stored",
                                       types[i]->name, values, side));
      }
    }
  };
  count(request.store.k_types, &quantisation::LayerFigures::k_not_finite, 'K');
  count(request.store.v_types, &quantisation::LayerFigures::v_not_finite, 'V');
  return warnings;
}

using quantisation::TypePair;

quantisation::SearchResult SearchTypes(const QuantLimits& asked, const ReplayRequest& request,
                                       const ReplayResult& result) {
  quantisation::SearchLimits limits;
  if (asked.max_kl) {
    // The search works on uncalibrated losses.
    limits.loss = *asked.max_kl;
    if (result.kl_method) {
      const eviction::Calibration& calibration =
          FindCalibration(*result.kl_method, eviction::Cause::kQuantisation);
      limits.loss = *asked.max_kl * calibration.median;
    }
  }
  if (asked.bytes != 0) limits.bytes_per_token = static_cast<double>(asked.bytes);
  // Flags apply to all layers, and layers without queries were not measured.
  const bool all_measured = result.missing_layers.empty();
  std::vector<bool> has_flags;
  for (const TypePair& pair : result.pairs)
    has_flags.push_back(all_measured && !EngineFlags(request, pair).empty());
  return Search(result, limits, has_flags);
}

namespace {

struct QuantBest {
  quantisation::OutcomeOf outcome;
  QuantPlan plan;
};

const Fields<QuantBest>& QuantBestFields() {
  static const Fields<QuantBest> fields = {
      Fields<QuantBest>::Inline(&QuantBest::outcome, quantisation::OutcomeFields()),
      Fields<QuantBest>::Inline(&QuantBest::plan, QuantPlanFields())};
  return fields;
}

std::optional<QuantBest> FindBest(const QuantAdvice& of) {
  if (!of.found.best) return std::nullopt;
  const std::vector<size_t>& choice = of.found.best->choice;
  return QuantBest{{Evaluate(of.result, choice), of.result.tokens},
                   MakeQuantPlan(of.request, of.result, choice)};
}

struct QuantStep {
  double bytes_per_token = 0, loss = 0;
};

const Fields<QuantStep>& QuantStepFields() {
  static const Fields<QuantStep> fields = {
      {"bytes_per_token", "Bytes per token, over all layers", &QuantStep::bytes_per_token,
       AtLeast(0)},
      {"loss", "Loss in the unit of advice.loss; null if no row has it", &QuantStep::loss,
       Nullable()}};
  return fields;
}

std::vector<QuantStep> ListSteps(const QuantAdvice& of) {
  std::vector<QuantStep> path;
  for (const quantisation::SearchPoint& point : of.found.path)
    path.push_back({point.bytes / static_cast<double>(of.result.tokens), point.loss});
  return path;
}

}  // namespace

const Fields<QuantAdvice>& QuantAdviceFields() {
  static const Fields<QuantAdvice> fields = {
      {"max_kl", "Limit on the calibrated loss (expected_nats) in nats; null: no limit",
       [](const QuantAdvice& of) { return of.asked.max_kl; }},
      {"bytes_per_token", "Limit on the bytes per token; null: no limit",
       [](const QuantAdvice& of) {
         return of.asked.bytes == 0 ? std::nullopt : std::optional(of.asked.bytes);
       }},
      {"loss",
       "Unit of the losses that were compared: nats per next token, not calibrated, or the mean "
       "of one_minus_cosine over layers",
       [](const QuantAdvice& of) { return of.found.is_nats ? "nats" : "one_minus_cosine"; },
       OneOf("nats", "one_minus_cosine")},
      {"best",
       "The choice within the limits: with --max-kl that of fewest bytes, otherwise that of least "
       "loss; null: no choice is within the limits",
       FindBest, QuantBestFields()},
      {"flags",
       "The best choice that llama.cpp's flags can express; null: none is within the limits",
       [](const QuantAdvice& of) {
         return of.found.best_with_flags
                    ? std::optional(
                          EngineFlags(of.request, of.result.pairs[*of.found.best_with_flags]))
                    : std::nullopt;
       }},
      {"path",
       "Choices from the whole cache to the smallest, each with fewer bytes than its predecessor",
       ListSteps, QuantStepFields()}};
  return fields;
}

void PrintAdvice(Console& console, const ReplayRequest& request, const ReplayResult& result,
                 const quantisation::SearchResult& found) {
  if (!found.best) {
    console.Line("no choice of these types is within the limits");
    return;
  }
  PrintOutcome(console, "advised", Evaluate(result, found.best->choice), result);
  std::map<std::string, std::vector<uint32_t>> layers;
  for (size_t l = 0; l < result.layers.size(); ++l) {
    const TypePair& pair = result.pairs[found.best->choice[l]];
    layers[fmt::format("K {}, V {}", TypeName(request, pair, true), TypeName(request, pair, false))]
        .push_back(result.layers[l].layer);
  }
  for (const auto& [types, where] : layers)
    console.Line(fmt::format("  {}: layers {}", types, fmt::join(where, ", ")));
  if (found.best_with_flags) {
    const size_t pair = *found.best_with_flags;
    PrintOutcome(console, fmt::format("llama.cpp: {}", EngineFlags(request, result.pairs[pair])),
                 EvaluatePair(result, pair), result);
    if (pair == 0 && request.head_dim % kBlockValues != 0) {
      console.Line(fmt::format("  llama.cpp cannot store blocks of {} in heads of {} values",
                               kBlockValues, request.head_dim));
    }
  }
}

}  // namespace kv
