// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "lib/report/html.h"
#include "lib/report/svg.h"
#include "lib/study/quantisation/report.h"

namespace kv::quantisation {
namespace {

std::string PairText(const ReplayRequest& request, const TypePair& pair) {
  return fmt::format("{} / {}", TypeName(request, pair, true), TypeName(request, pair, false));
}

double LossOf(const Outcome& outcome) {
  return outcome.kl ? outcome.kl->expected() : outcome.mean.output_error;
}

void AddChart(const ReplayRequest& request, const ReplayResult& result, report::Page& page) {
  report::LineChart chart;
  chart.title = "Loss against the ratio of the whole cache";
  chart.x_label = "16-bit bytes / stored bytes";
  chart.y_label = result.kl_method ? "expected KL, nats" : "relative error of attention outputs";
  chart.y_min = 0;
  chart.log_x = true;
  report::ChartSeries pairs{"", {}, false, false, false};
  for (size_t pair = 1; pair < result.pairs.size(); ++pair) {
    if (IsUnchanged(request, result, result.pairs[pair])) continue;
    const Outcome outcome = EvaluatePair(result, pair);
    pairs.points.push_back(
        {outcome.ratio(), LossOf(outcome), PairText(request, result.pairs[pair])});
  }
  report::ChartSeries best{"", report::Frontier(pairs.points, true), true};
  for (report::ChartPoint& point : best.points) point.name.clear();
  chart.series = {best, pairs};
  page.Figure(Render(chart),
              "Each point is a type of K and one of V for all layers. The line joins those that no "
              "other one beats. Pairs that store nothing of this cache are left out.");
}

void AddLayers(const ReplayRequest& request, const ReplayResult& result, report::Page& page) {
  report::LineChart chart;
  chart.title = "Relative error of attention outputs by layer";
  chart.x_label = "layer";
  chart.y_label = "output error";
  chart.whole_x = chart.markers = true;
  constexpr size_t kMostLines = 8;
  for (size_t pair = 1; pair < std::min(result.pairs.size(), kMostLines + 1); ++pair) {
    if (IsUnchanged(request, result, result.pairs[pair])) continue;
    report::ChartSeries series{PairText(request, result.pairs[pair]), {}, false, false, false};
    for (const LayerFigures& layer : result.layers) {
      series.points.push_back({static_cast<double>(layer.layer), layer.all[pair].output_error});
    }
    chart.series.push_back(std::move(series));
  }
  page.Figure(Render(chart), "Where types hurt. Of many pairs the first ones are drawn.");
}

}  // namespace

report::Page ReportPage(const Report& report, const std::vector<std::string>& notes) {
  const ReplayRequest& request = report.request;
  const ReplayResult& result = report.result;
  const KvTensor& k = report.snapshot.layers.front().k;
  report::Page page(
      "Quantised caches",
      fmt::format(
          "{} layers, {} query heads over {} kv heads of {}, {} tokens; {} of {} query rows "
          "a layer",
          result.layers.size(), report.trace.query_heads, k.heads, k.head_dim, result.tokens,
          result.measured.positions.size(), result.measured.population));
  page.Heading("Loss against ratio");
  AddChart(request, result, page);
  AddLayers(request, result, page);
  TextTable table = PairTable(report);
  table.head.push_back("flags");
  for (size_t pair = 0; pair < result.pairs.size(); ++pair)
    table.rows[pair].push_back(EngineFlags(request, result.pairs[pair]));
  page.Table(std::move(table));
  page.Notes("Remarks", notes);
  return page;
}

}  // namespace kv::quantisation
