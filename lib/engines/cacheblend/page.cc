// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The HTML page of a blend: a map of chosen tokens, charts of deviation by ratio and by layer, and
// tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/engines/cacheblend/report.h"
#include "lib/report/html.h"
#include "lib/report/svg.h"

namespace kv::blend {
namespace {

using report::ChartSeries;
using report::LineChart;
using report::StripMap;
using report::StripRow;
using report::StripSpan;

constexpr size_t kMostRows = 48;  // lines of the map

using format::Percent;

// Returns the scores of the check layer relative to the largest one; the choice is made by these.
std::vector<double> Strengths(const Result& result) {
  const LayerDeviation& check = result.layers[result.check_place];
  std::vector<double> strengths(check.v.tokens.size());
  double most = 0;
  for (size_t t = 0; t < strengths.size(); ++t) {
    const double v = check.v.tokens[t], k = check.k.tokens[t];
    const ScoreRule rule = result.request.score;
    strengths[t] = std::sqrt(rule == ScoreRule::kV ? v : rule == ScoreRule::kK ? k : v + k);
    if (std::isfinite(strengths[t])) most = std::max(most, strengths[t]);
  }
  for (double& strength : strengths) {
    strength = !std::isfinite(strength) ? 1 : most == 0 ? 0 : strength / most;
  }
  return strengths;
}

// Returns one line of the map: consecutive tokens, several per cell if there are many.
StripRow BuildStripRow(const std::string& name, uint64_t columns, uint64_t begin, uint64_t end,
                       uint64_t scored, const std::vector<double>& strengths,
                       const std::vector<uint8_t>& chosen) {
  StripRow row{name, {}};
  const uint64_t step = std::max<uint64_t>(1, (end - begin + columns - 1) / columns);
  const uint64_t forced = std::clamp(scored, begin, end);
  if (forced < end) {
    row.spans.push_back(
        {static_cast<double>(forced - begin), static_cast<double>(end - begin), NAN, 1,
         fmt::format("tokens {} to {}: the question, always recomputed", forced, end - 1)});
  }
  for (uint64_t t = begin; t < forced; t += step) {
    const uint64_t to = std::min(forced, t + step);
    double strength = 0;
    uint64_t count = 0;
    for (uint64_t i = t; i < to; ++i) {
      strength = std::max(strength, strengths[i]);
      count += chosen[i];
    }
    const std::string what =
        step == 1 ? fmt::format("token {}", t) : fmt::format("tokens {} to {}", t, to - 1);
    const auto x = static_cast<double>(t - begin), x_end = static_cast<double>(to - begin);
    const std::string state = count == 0  ? ": reused"
                              : step == 1 ? ": recomputed"
                                          : fmt::format(": {} recomputed", count);
    // A chosen token is never so pale that it looks like a reused one.
    const double least = count > 0 ? 0.4 : 0.08;
    row.spans.push_back(
        {x, x_end, least + (1 - least) * strength, count > 0 ? 1 : 0,
         what + state + fmt::format(", {:.0f}% of the largest deviation", 100 * strength)});
  }
  return row;
}

void AddMap(const CachePair& caches, const Result& result, report::Page& page) {
  const std::vector<Chunk>& chunks = caches.old().chunks;
  const bool is_lmcache = result.request.engine == Engine::kLmCache;
  const uint64_t scored = is_lmcache ? result.covered : result.tokens - result.request.suffix;
  const std::vector<double> strengths = Strengths(result);
  std::vector<uint8_t> chosen(result.tokens);
  for (const uint64_t t : result.selection.indices) chosen[t] = 1;
  StripMap map;
  map.title = "Recomputed tokens and their deviation, chunk by chunk";
  map.low_label = "reused, near";
  map.high_label = "far";
  map.second_label = "recomputed";
  const uint64_t columns = report::MapColumns(result.tokens, std::min(chunks.size(), kMostRows));
  const auto add = [&](const std::string& name, uint64_t begin, uint64_t end) {
    map.rows.push_back(BuildStripRow(name, columns, begin, end, scored, strengths, chosen));
    map.x_end = std::max(map.x_end, static_cast<double>(end - begin));
  };
  const bool by_chunk = chunks.size() <= kMostRows;
  if (by_chunk) {
    for (size_t i = 0; i < chunks.size(); ++i) {
      add(fmt::format("chunk {}", i), chunks[i].start, chunks[i].start + chunks[i].tokens);
    }
    if (result.covered < result.tokens) add("question", result.covered, result.tokens);
  } else {
    const uint64_t step = (result.tokens + kMostRows - 1) / kMostRows;
    for (uint64_t t = 0; t < result.tokens; t += step) {
      add(fmt::format("{}", t), t, std::min(result.tokens, t + step));
    }
  }
  map.x_label = by_chunk ? "token of the chunk" : "token, counted from the number at the left";
  page.Heading("Which tokens are recomputed");
  page.Figure(Render(map),
              fmt::format("Orange: chosen at layer {} and recomputed in every later layer. Blue: "
                          "reused from the chunk's cache. The stronger the colour, the further the "
                          "token is from the full run. Dashed: the question, always recomputed.",
                          result.request.check_layer));
}

// Adds a heat map of the mean deviation of each chunk in each layer, which shows where reuse hurts.
void AddHeat(const CachePair& caches, const Result& result, report::Page& page) {
  StripMap map;
  map.title = "Relative deviation of V by layer and chunk";
  map.x_label = "chunk";
  map.unit_ticks = true;
  map.x_end = static_cast<double>(caches.old().chunks.size());
  double most = 0;
  for (const LayerDeviation& layer : result.layers) {
    for (const double mean : layer.v.chunk_means) most = std::max(most, mean);
  }
  for (const LayerDeviation& layer : result.layers) {
    StripRow row{fmt::format("layer {}", layer.layer), {}};
    for (size_t c = 0; c < layer.v.chunk_means.size(); ++c) {
      const double mean = layer.v.chunk_means[c];
      const auto x = static_cast<double>(c);
      row.spans.push_back({x, x + 1, most > 0 ? mean / most : 0, 0,
                           fmt::format("layer {}, chunk {}: {:.3f}", layer.layer, c, mean)});
    }
    map.rows.push_back(std::move(row));
  }
  map.low_label = "0";
  map.high_label = fmt::format("{:.3g}", most);
  page.Figure(Render(map),
              "Distance of V of a reused chunk from the full run, relative to V, mean of its "
              "tokens. The first chunk is exact; later ones lack attention to those before.");
}

ChartSeries MakeCurveSeries(const std::string& name, const Result& result, bool emphasised,
                            bool dashed, const std::function<double(const CurveLayer&)>& value) {
  ChartSeries series{name, {}, emphasised, dashed};
  for (const CurvePoint& point : result.curve) {
    series.points.push_back({point.ratio, value(point.mean)});
  }
  return series;
}

void AddRemaining(const Result& result, report::Page& page) {
  page.Heading("What is left");
  for (const bool is_value : {true, false}) {
    const auto part = [is_value](const Remaining& r) { return is_value ? r.v : r.k; };
    LineChart chart;
    chart.title =
        fmt::format("Deviation of {} left against the recompute ratio", is_value ? "V" : "K");
    chart.x_label = "recompute ratio";
    chart.y_label = fmt::format("deviation of {} left, mean of layers", is_value ? "V" : "K");
    chart.y_unit = report::Unit::kPercent;
    chart.y_min = 0;
    chart.markers = true;
    chart.series = {MakeCurveSeries("chosen", result, true, false,
                                    [&](const CurveLayer& l) { return part(l.selected); }),
                    MakeCurveSeries("random", result, false, false,
                                    [&](const CurveLayer& l) { return part(l.random); }),
                    MakeCurveSeries("first of chunk", result, false, false,
                                    [&](const CurveLayer& l) { return part(l.first_of_chunk); }),
                    MakeCurveSeries("oracle", result, false, true,
                                    [&](const CurveLayer& l) { return part(l.oracle); })};
    page.Figure(
        Render(chart),
        is_value
            ? "Lower is better. All methods choose the same number of tokens. The oracle chooses "
              "again in every layer: the distance to its line is the price of choosing once."
            : "The same tokens as for the values, measured on the keys.");
    if (is_value) page.Feature();
  }
}

void AddAttention(const Result& result, report::Page& page) {
  if (!result.has_attention) return;
  const auto value = [](double AttentionError::*field) {
    return [field](const CurveLayer& l) { return l.attention ? (*l.attention).*field : NAN; };
  };
  LineChart chart;
  chart.title = "Error of the attention output against the recompute ratio";
  chart.x_label = "recompute ratio";
  chart.y_label = "mean layer error, |O - O'| / |O|";
  chart.y_unit = report::Unit::kPercent;
  chart.y_min = 0;
  chart.markers = true;
  chart.series = {
      MakeCurveSeries("output", result, true, false, value(&AttentionError::out_rel_l2))};
  page.Figure(Render(chart), "Attention of the question's own queries over the blended cache.");
  chart.title = "Attention deviation against the recompute ratio";
  chart.y_label = "|P - P'|, mean of layers";
  chart.y_unit = report::Unit::kNumber;
  chart.series = {
      MakeCurveSeries("deviation", result, true, false, value(&AttentionError::dev_l2))};
  page.Figure(Render(chart), "The paper's attention deviation: probabilities, all heads and rows.");
}

void AddLayers(const Result& result, report::Page& page) {
  page.Heading("Layer by layer");
  LineChart deviation = report::ChartByLayer("Relative deviation of V by layer",
                                             "deviation of a token's V, relative to V", 0);
  ChartSeries p50{"p50", {}, true, false, false}, p90{"p90", {}, false, false, false};
  ChartSeries p99{"p99", {}, false, false, false}, max{"max", {}, false, false, false};
  for (const LayerDeviation& layer : result.layers) {
    const auto x = static_cast<double>(layer.layer);
    p50.points.push_back({x, layer.v.rel_p50});
    p90.points.push_back({x, layer.v.rel_p90});
    p99.points.push_back({x, layer.v.rel_p99});
    max.points.push_back({x, layer.v.rel_max});
  }
  deviation.series = {p50, p90, p99, max};
  page.Figure(Render(deviation),
              "How far reused values are from those of a full run, before anything is recomputed.");
  LineChart ranks = report::ChartByLayer("Agreement of a layer's own choice with the check layer's",
                                         "1: the same tokens");
  ranks.y_max = 1;
  ChartSeries overlap{"overlap", {}, true, false, false};
  ChartSeries jaccard{"Jaccard", {}, false, false, false};
  ChartSeries spearman{"Spearman", {}, false, false, false};
  double least = 0;
  for (size_t i = 0; i < result.layers.size(); ++i) {
    const auto x = static_cast<double>(result.layers[i].layer);
    if (result.ranks[i].with_check) {
      overlap.points.push_back({x, result.ranks[i].with_check->share});
      jaccard.points.push_back({x, result.ranks[i].with_check->jaccard});
    }
    if (result.ranks[i].spearman_prev) {
      spearman.points.push_back({x, *result.ranks[i].spearman_prev});
      least = std::min(least, *result.ranks[i].spearman_prev);
    }
  }
  if (overlap.points.empty()) return;
  ranks.y_min = least;
  ranks.series = {overlap, jaccard, spearman};
  page.Figure(Render(ranks),
              fmt::format("Overlap and Jaccard: this layer's own best tokens against those of "
                          "layer {}. Spearman: ranks against the layer before.",
                          result.request.check_layer));
}

std::vector<std::pair<std::string, std::string>> ListPageFacts(const Result& result,
                                                               const ReportExtras& extras) {
  const CurvePoint& main = result.main();
  std::vector<std::pair<std::string, std::string>> facts = {
      {"recomputed",
       fmt::format("{} of {} tokens", result.selection.indices.size(), result.tokens)},
      {"of the prefill", Percent(main.compute_share)},
      {"V deviation left", Percent(main.mean.selected.v)},
      {"oracle", Percent(main.mean.oracle.v)},
      {"random", Percent(main.mean.random.v)}};
  if (main.mean.attention)
    facts.push_back({"mean layer error", Percent(main.mean.attention->out_rel_l2)});
  if (extras.controller) facts.push_back({"controller", Percent(extras.controller->ratio)});
  if (!extras.gates.empty()) facts.push_back({"gates", extras.pass() ? "pass" : "fail"});
  return facts;
}

void AddGates(const ReportExtras& extras, report::Page& page) {
  if (extras.gates.empty()) return;
  page.Heading("Gates");
  std::vector<std::vector<std::string>> rows = {{"gate", "value", "limit", "verdict"}};
  for (const GateResult& gate : extras.gates) {
    rows.push_back(
        {gate.gate.Name(), gate.value ? fmt::format("{:.4g}", *gate.value) : "-",
         fmt::format("{} {}", gate.gate.at_most ? "at most" : "at least", gate.gate.limit),
         gate.pass ? "pass" : "fail"});
  }
  page.Table(rows);
}

}  // namespace

TextTable CurveTable(const Result& result) {
  using Columns = Fields<CurvePoint>;
  const auto share = [](std::string_view name, Remaining CurveLayer::*of,
                        double Remaining::*member) {
    const auto get = [=](const CurvePoint& point) { return point.mean.*of.*member; };
    return Columns::Column(name, get, format::AsPercent);
  };
  const auto attention = [](std::string_view name, double AttentionError::*member, Format format) {
    const auto get = [=](const CurvePoint& point) { return IfThere(point.mean.attention, member); };
    return Columns::Column(name, get, format);
  };
  static const Columns columns = {
      Columns::Column("ratio", &CurvePoint::ratio),
      Columns::Column("tokens", [](const CurvePoint& of) { return of.selection.topk; }),
      Columns::Column("compute", &CurvePoint::compute_share, format::AsPercent),
      share("V left", &CurveLayer::selected, &Remaining::v),
      share("oracle", &CurveLayer::oracle, &Remaining::v),
      share("random", &CurveLayer::random, &Remaining::v),
      share("first", &CurveLayer::first_of_chunk, &Remaining::v),
      share("K left", &CurveLayer::selected, &Remaining::k),
      attention("attention deviation", &AttentionError::dev_l2, format::AsReal),
      attention("mean layer error", &AttentionError::out_rel_l2, format::AsPercent),
      attention("cosine", &AttentionError::out_cos_mean,
                [](const Value& cosine) { return fmt::format("{:.4f}", cosine.number()); })};
  return MakeTextTable(columns, result.curve);
}

TextTable ChunkTable(const CachePair& caches, const Result& result) {
  using C = ChunkOf;
  const auto share = [](const C& of) {
    return of.report.result.selection.topk == 0 ? std::nullopt : std::optional(of.share());
  };
  const auto deviation = [](const C& of) {
    const Result& run = of.report.result;
    return run.layers[run.check_place].v.chunk_means[of.index];
  };
  static const Fields<C> columns = {
      Fields<C>::Column("chunk", &C::index),
      Fields<C>::Column("tokens", [](const C& of) { return of.chunk().tokens; }),
      Fields<C>::Column("at", [](const C& of) { return of.chunk().start; }),
      Fields<C>::Column("chosen", &C::selected),
      Fields<C>::Column("share", share, format::AsPercent),
      Fields<C>::Column("V deviation", deviation,
                        [](const Value& mean) { return fmt::format("{:.3f}", mean.number()); }),
      Fields<C>::Column("file", [](const C& of) { return of.chunk().path; })};
  TextTable table{TextHead(columns), {}};
  const ReportExtras none;
  const Report report{caches, result, none};
  for (size_t i = 0; i < caches.old().chunks.size(); ++i)
    table.rows.push_back(TextRow(columns, {report, i}));
  return table;
}

report::Page ReportPage(const CachePair& caches, const Result& result, const ReportExtras& extras) {
  const KvRows::Layer& shape = caches.layers().front();
  report::Page page(
      "CacheBlend replay",
      fmt::format(
          "{}: {} tokens in {} chunks, {} layers, {} kv heads x {}; {} at layer {}, ratio {}",
          caches.full().rows.parts().front().snapshot->source.path, result.tokens,
          caches.old().chunks.size(), caches.layers().size(), shape.heads, shape.k_dim,
          VariantName(result.request), result.request.check_layer, result.request.ratio));
  page.Facts(ListPageFacts(result, extras),
             fmt::format("{} at layer {}, ratio {}", VariantName(result.request),
                         result.request.check_layer, result.request.ratio));
  page.Paragraph(
      "Recomputed rows are taken from the full run (\"oracle rows\"). A model computes them over "
      "the blended cache, so what is left here is a lower bound.");
  AddGates(extras, page);
  AddMap(caches, result, page);
  AddHeat(caches, result, page);
  AddRemaining(result, page);
  AddAttention(result, page);
  std::vector<size_t> strong;
  for (size_t i = 0; i < result.curve.size(); ++i) {
    if (result.curve[i].ratio == result.request.ratio) strong.push_back(i);
  }
  page.Table(CurveTable(result), strong);
  AddLayers(result, page);
  page.Heading("Chunk by chunk");
  page.Table(ChunkTable(caches, result));
  std::vector<std::string> faults;
  for (const Fault& fault : result.faults) faults.push_back(fault.text);
  if (!result.leaks.empty()) {
    const LayerLeak& first = result.leaks.front();
    faults.push_back(fmt::format(
        "in layer {} keys of the future would take {} of a recomputed query's attention and move "
        "its output by {}",
        first.layer, Percent(first.error.leaked_mass_mean), Percent(first.error.leak_out_rel_l2)));
  }
  page.Notes("What CacheBlend's code would do", faults);
  page.Notes("Remarks", result.warnings);
  return page;
}

}  // namespace kv::blend
