// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/report.h"

#include "lib/study/analysis/tensor_analysis.h"

namespace kv::analysis {
namespace {

const Fields<Totals>& TotalsFields() {
  static const Fields<Totals> fields = {
      Fields<Totals>::Inline([](const Totals& of) -> const Coded& { return of; }, CodedFields()),
      {"own_bytes", "Bytes after coding at the level asked for; at compat the same as coded_bytes",
       &Totals::own_bytes},
      {"own_ratio",
       "raw_bytes / own_bytes; 1 where nothing was coded",
       &Totals::own_ratio,
       {.above = 0}},
      {"bits_per_value",
       "Bits per value that the better of both codecs reaches",
       &Totals::reached,
       {.least = 0}},
      {"bound_bits_per_value",
       "Bits per value under the cheapest entropy model of each tensor; of order 0 or 1, so a "
       "codec "
       "that draws on more may need less",
       &Totals::bound,
       {.least = 0}},
      {"bound_ratio",
       "Bytes of the tensors / bytes under those models",
       &Totals::bound_ratio,
       {.least = 0}},
      {"decodes", "Whether everything decodes to the same bytes again", &Totals::decodes}};
  return fields;
}

const Fields<Extreme>& ExtremeFields() {
  static const Fields<Extreme> fields = {
      {"layer", "Number of the layer", &Extreme::layer},
      {"tensor",
       "Whether it is K or V",
       [](const Extreme& of) { return of.is_value ? "v" : "k"; },
       {.choices = {"k", "v"}}},
      {"ratio",
       "Its ratio under the better of both codecs, original / coded; null without any tensor",
       [](const Extreme& of) { return of.ratio == 0 ? std::nullopt : std::optional(of.ratio); },
       {.least = 0}}};
  return fields;
}

std::optional<Totals> OrNone(const Totals& totals) {
  return totals.raw_bytes == 0 ? std::nullopt : std::optional(totals);
}

const Fields<LayerAnalysis>& LayerAnalysisFields() {
  const auto text = [](std::string LayerAnalysis::*member) {
    return [member](const LayerAnalysis& of) {
      return (of.*member).empty() ? std::nullopt : std::optional(of.*member);
    };
  };
  static const Fields<LayerAnalysis> fields = {
      {"layer", "Number of the layer", &LayerAnalysis::layer},
      {"label",
       "Name of the layer, where its number does not say what it is",
       text(&LayerAnalysis::label),
       {.absent = true}},
      {"group",
       "Name of the group of layers that it belongs to, where the model has groups",
       text(&LayerAnalysis::group),
       {.absent = true}},
      {"k", "What was measured of K; null: the layer has none", &LayerAnalysis::k,
       TensorAnalysisFields()},
      {"v", "What was measured of V; null: the layer has none", &LayerAnalysis::v,
       TensorAnalysisFields()}};
  return fields;
}

}  // namespace

const Fields<Analysis>& AnalysisFields() {
  static const Fields<Analysis> summary = {
      {"total", "Sums over K and V; null: the snapshot has neither",
       [](const Analysis& of) { return OrNone(of.total()); }, TotalsFields()},
      {"k", "Sums over K; null: the snapshot has none",
       [](const Analysis& of) { return OrNone(of.k); }, TotalsFields()},
      {"v", "Sums over V; null: the snapshot has none",
       [](const Analysis& of) { return OrNone(of.v); }, TotalsFields()},
      {"best", "The tensor that compresses best", &Analysis::best, ExtremeFields()},
      {"worst", "The tensor that compresses worst", &Analysis::worst, ExtremeFields()}};
  static const Fields<Analysis> fields = {
      {"summary", "Sums over all layers", std::identity(), summary},
      {"layers",
       "What was measured in each layer",
       &Analysis::layers,
       LayerAnalysisFields(),
       {.rows = true}},
      {"findings", "Sentences that a user should read", &Analysis::findings}};
  return fields;
}

}  // namespace kv::analysis
