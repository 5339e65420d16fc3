// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tables and charts of the analysis of a cache.
#include "lib/study/analysis/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/study/analysis/tensor_analysis.h"
#include "lib/study/statistics/stats_page.h"

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
      {"bits_per_value", "Bits per value that the better of both codecs reaches", &Totals::reached,
       AtLeast(0)},
      {"bound_bits_per_value",
       "Bits per value under the cheapest entropy model of each tensor; of order 0 or 1, so a "
       "codec that draws on more may need less",
       &Totals::bound, AtLeast(0)},
      {"bound_ratio", "Bytes of the tensors / bytes under those models", &Totals::bound_ratio,
       AtLeast(0)},
      {"decodes", "Whether everything decodes to the same bytes again", &Totals::decodes}};
  return fields;
}

const Fields<Extreme>& ExtremeFields() {
  static const Fields<Extreme> fields = {
      {"layer", "Number of the layer", &Extreme::layer},
      {"tensor", "Whether it is K or V", [](const Extreme& of) { return of.is_value ? "v" : "k"; },
       OneOf("k", "v")},
      {"ratio",
       "Its ratio under the better of both codecs, original / coded; null without any tensor",
       [](const Extreme& of) { return of.ratio == 0 ? std::nullopt : std::optional(of.ratio); },
       AtLeast(0)}};
  return fields;
}

std::optional<Totals> OrNone(const Totals& totals) {
  return totals.raw_bytes == 0 ? std::nullopt : std::optional(totals);
}

const Fields<LayerAnalysis>& LayerAnalysisFields() {
  static const Fields<LayerAnalysis> fields = {
      {"layer", "Number of the layer", &LayerAnalysis::layer},
      {"label", "Name of the layer, where its number does not say what it is",
       IfAny(&LayerAnalysis::label), Absent()},
      {"group", "Name of the group of layers that it belongs to, where the model has groups",
       IfAny(&LayerAnalysis::group), Absent()},
      {"k", "What was measured of K; null: the layer has none", &LayerAnalysis::k,
       TensorAnalysisFields()},
      {"v", "What was measured of V; null: the layer has none", &LayerAnalysis::v,
       TensorAnalysisFields()}};
  return fields;
}

using report::ChartSeries;
using report::LineChart;

void AddCharts(const Analysis& analysis, const std::string& level, report::Page& page) {
  const auto add = [&](const std::string& suffix, bool emphasised, const auto& figure,
                       LineChart& chart) {
    for (ChartSeries& series :
         report::SeriesOfTensors(analysis.layers, figure, suffix, emphasised)) {
      if (!series.points.empty()) chart.series.push_back(std::move(series));
    }
  };
  LineChart ratios = report::ChartByLayer("Ratio by layer", "original / compressed");
  ratios.y_unit = report::Unit::kFactor;
  const bool with_own = level != "compat";
  const auto own_ratio = [](const TensorAnalysis& tensor) {
    return tensor.own ? tensor.own->ratio() : NAN;
  };
  if (with_own) add(" " + level, true, own_ratio, ratios);
  add(
      " mnn", !with_own, [](const TensorAnalysis& tensor) { return tensor.measured.ratio(); },
      ratios);
  page.Figure(Render(ratios),
              "Measured: coded, decoded again and compared. Higher is better; 1 saves nothing.");
  LineChart bits = report::ChartByLayer("Bits per value by layer", "bits per value");
  add(
      "", true, [](const TensorAnalysis& tensor) { return tensor.reached_bits(); }, bits);
  add(
      " entropy", false, [](const TensorAnalysis& tensor) { return tensor.bound().total_bits(); },
      bits);
  page.Figure(Render(bits),
              "What the better codec needs, and the best entropy model of order 0 or 1. A codec "
              "that draws on earlier rows, which such models do not see, goes below it.");
  std::vector<LayerStats> stats;
  for (const LayerAnalysis& layer : analysis.layers) {
    LayerStats& of = stats.emplace_back(LayerStats{layer.layer});
    if (layer.k) of.k = layer.k->stats;
    if (layer.v) of.v = layer.v->stats;
  }
  AddPlaneEntropies(stats, page);
}

std::string Percent(uint64_t part, uint64_t whole) {
  if (part == 0 || whole == 0) return "0";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return share < 0.1 ? "<0.1%" : fmt::format("{:.1f}%", share);
}

std::string FormatPlanes(const TensorAnalysis& tensor) {
  std::string text;
  if (tensor.measured.planes.size() > 4) return "-";
  for (auto plane = tensor.measured.planes.rbegin(); plane != tensor.measured.planes.rend();
       ++plane) {
    text += fmt::format("{}{:.2f}", text.empty() ? "" : " ", plane->ratio());
  }
  return text.empty() ? "-" : text;
}

std::string WorstAndBestHead(const TensorAnalysis& tensor) {
  if (tensor.heads_coded.empty()) return "-";
  const auto [least, most] =
      std::minmax_element(tensor.heads_coded.begin(), tensor.heads_coded.end(),
                          [](const auto& a, const auto& b) { return a.ratio() < b.ratio(); });
  return fmt::format("{:.2f} ({}) .. {:.2f} ({})", least->ratio(),
                     least - tensor.heads_coded.begin(), most->ratio(),
                     most - tensor.heads_coded.begin());
}

std::string TwoPlaces(const Value& number) { return fmt::format("{:.2f}", number.number()); }

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

TextTable LayersTable(const Analysis& analysis, const std::string& level) {
  using Tensor = TensorAnalysis;
  using Columns = Fields<Tensor>;
  Columns columns = {Columns::Column(
      "mnn", [](const Tensor& of) { return of.measured.ratio(); }, format::AsFactor)};
  if (level != "compat") {
    const auto own = [](const Tensor& of) {
      return of.own ? std::optional(of.own->ratio()) : std::nullopt;
    };
    columns.Add(Columns::Column(level, own, format::AsFactor));
  }
  columns.Add(Columns::Column("bits", &Tensor::reached_bits, TwoPlaces));
  columns.Add(Columns::Column(
      "entropy", [](const Tensor& of) { return of.bound().total_bits(); }, TwoPlaces));
  columns.Add(
      Columns::Column("best model", [](const Tensor& of) { return std::string(of.bound().name); }));
  columns.Add(Columns::Column("high to low plane", FormatPlanes));
  columns.Add(Columns::Column(
      "zero rows", [](const Tensor& of) { return Percent(of.structure.zero_rows, of.tokens); }));
  columns.Add(Columns::Column(
      "repeated", [](const Tensor& of) { return Percent(of.structure.repeated_rows, of.tokens); }));
  const auto has_heads = [](const std::optional<Tensor>& of) {
    return of && !of->heads_coded.empty();
  };
  if (std::any_of(analysis.layers.begin(), analysis.layers.end(), [&](const LayerAnalysis& layer) {
        return has_heads(layer.k) || has_heads(layer.v);
      })) {
    columns.Add(Columns::Column("heads, worst .. best", WorstAndBestHead));
  }
  return TableByTensor(columns, analysis.layers, {"K", "V"});
}

void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page) {
  const Totals total = analysis.total();
  if (total.raw_bytes == 0) return page.Paragraph("There are no keys and values.");
  std::vector<std::pair<std::string, std::string>> facts = {
      {"K and V", report::ShortBytes(static_cast<double>(total.raw_bytes))},
      {"by MNN's codec", format::Factor(total.ratio())}};
  if (level != "compat") facts.push_back({"at level " + level, format::Factor(total.own_ratio())});
  facts.push_back({"order-0/1 entropy", format::Factor(total.bound_ratio())});
  facts.push_back({"decoded again", total.decodes ? "equal by hash" : "DIFFERENT"});
  page.Facts(facts);
  AddCharts(analysis, level, page);
  page.Table(LayersTable(analysis, level));
  page.Notes("Remarks", analysis.findings);
}

}  // namespace kv::analysis
