// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The HTML page of a replay: charts of loss against ratio by policy, strips of what each layer
// keeps, and tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/report/html.h"
#include "lib/report/svg.h"
#include "lib/study/eviction/replay.h"
#include "lib/study/eviction/report.h"

namespace kv::eviction {
namespace {

// Limits that keep a page small.
constexpr size_t kMostPoints = 400, kMostPointsOfLayer = 200;
constexpr double kShades = 20;

using report::ChartSeries;
using report::LineChart;
using report::StripMap;
using report::StripRow;
using report::StripSpan;
using RunValue = std::function<double(const ReplayRun&)>;

using format::Percent;
std::string Shown(const Distribution& of, double Distribution::*figure) {
  return of.count == 0 ? std::string(1, '-') : Percent(of.*figure);
}
std::string FormatError(const AttentionSummary& of) {
  return of.output_error.count == 0 ? std::string(1, '-') : Percent(of.output_error_frobenius);
}
std::string FormatNats(const ReplayRun& run) {
  if (!run.predicted_kl) return "-";
  const PredictedKl& kl = *run.predicted_kl;
  return fmt::format("{:.3g} ({:.3g} to {:.3g})", kl.expected(), kl.low(), kl.high());
}
// Returns the run that the detailed figures show: the first one that evicts.
const ReplayRun& MainRun(const ReplayResult& result) {
  for (const ReplayRun& run : result.runs) {
    if (run.evictions() > 0) return run;
  }
  return result.runs.front();
}

// Returns the expected real KL and the range of most runs of the study.
std::string NatsText(const PredictedKl& kl) {
  const std::string expected = format::Nats(kl.expected());
  return kl.nats == 0
             ? expected
             : fmt::format("{} ({}-{})", expected, format::Nats(kl.low()), format::Nats(kl.high()));
}

// Returns a share of rows, with its standard error if rows were sampled.
std::optional<std::string> ShareText(const Distribution& of, double value, double error) {
  if (of.count == 0) return std::nullopt;
  const std::string share = format::Percent(value);
  return error == 0 ? share : fmt::format("{} +-{}", share, format::Percent(error));
}

std::optional<std::string> ErrorText(const AttentionSummary& rows) {
  return ShareText(rows.output_error, rows.output_error_frobenius,
                   rows.standard_error.output_error_frobenius);
}
std::optional<std::string> MassText(const AttentionSummary& rows) {
  return ShareText(rows.mass, rows.mass.mean, rows.standard_error.mass);
}

// Returns a column of a quality figure, over the rows that evict or over all.
template <typename Getter>
Fields<ReplayRun>::Field Column(
    std::string_view name, Getter get, Format format = format::Plain,
    std::optional<AttentionSummary> ReplayRun::*of = &ReplayRun::evicting) {
  const auto getter = [=](const ReplayRun& run) {
    return run.*of ? Value(get(*(run.*of))) : Value();
  };
  return {name, "", getter, Heading(name, format)};
}
auto Figured(Distribution AttentionSummary::*of, double Distribution::*member) {
  return [=](const AttentionSummary& rows) {
    return (rows.*of).count == 0 ? std::nullopt : std::optional((rows.*of).*member);
  };
}

void AddQuality(Fields<ReplayRun>& columns) {
  using Rows = AttentionSummary;
  using D = Distribution;
  columns.Add(Column("output error", ErrorText));
  columns.Add(Column(
      "1 - cosine",
      [](const Rows& rows) {
        return rows.output_cosine.count == 0 ? std::nullopt
                                             : std::optional(1 - rows.output_cosine.mean);
      },
      format::AsReal));
  columns.Add(Column("row error p95", Figured(&Rows::output_error, &D::p95), format::AsPercent));
  columns.Add(Column("attention kept", MassText));
  columns.Add(Column("attention kept p5", Figured(&Rows::mass, &D::p5), format::AsPercent));
  columns.Add(Column("attention KL", Figured(&Rows::kl, &D::mean), format::AsReal));
  columns.Add(Column(
      "top-16",
      [](const Rows& rows) {
        return rows.top_k[1].count == 0 ? std::nullopt : std::optional(rows.top_k[1].mean);
      },
      format::AsPercent));
  columns.Add(Column("error (all rows)", ErrorText, format::Plain, &ReplayRun::quality));
  columns.Add(Column("attention kept (all rows)", MassText, format::Plain, &ReplayRun::quality));
}

Fields<ReplayRun> SelectColumns(const ReplayResult& result) {
  Fields<ReplayRun> columns = {{"policy", "", &ReplayRun::policy_text, Heading("policy")},
                               {"target", "", &ReplayRun::target_text, Heading("target")},
                               Fields<ReplayRun>::Inline(OwnFields())};
  if (result.engine != nullptr && !result.engine->ratio_name.empty()) {
    const auto ratio = [](const ReplayRun& run) {
      return run.engine ? std::optional(fmt::format("{:.4f}x", run.engine->reported_ratio))
                        : std::nullopt;
    };
    const std::string_view name = result.engine->ratio_name;
    columns.Add({name, "", ratio, Heading(name)});
  }
  if (result.kl_method) {
    const auto nats = [](const ReplayRun& run) {
      return run.predicted_kl ? std::optional(NatsText(*run.predicted_kl)) : std::nullopt;
    };
    columns.Add({"predicted_kl", "", nats, Heading("expected KL")});
  }
  const auto has_quality = [](const ReplayRun& run) { return run.quality.has_value(); };
  if (std::any_of(result.runs.begin(), result.runs.end(), has_quality)) AddQuality(columns);
  return columns;
}

// Returns one line per policy: a value of each run against the ratio that the run achieved.
std::vector<ChartSeries> ByPolicy(const ReplayResult& result, const RunValue& x,
                                  const RunValue& y) {
  std::vector<ChartSeries> series;
  for (const ReplayRun& run : result.runs) {
    if (run.info().spending == Spending::kNone || !run.evicting || run.evicting->mass.count == 0)
      continue;
    auto found = std::find_if(series.begin(), series.end(),
                              [&](const ChartSeries& s) { return s.name == run.policy; });
    if (found == series.end()) {
      series.push_back(
          {run.policy, {}, run.info().tuned_by == Tuning::kBlocks, run.info().is_bound});
      found = std::prev(series.end());
    }
    found->points.push_back(
        {x(run), y(run), run.same_as.empty() ? std::string() : run.policy_text()});
  }
  for (ChartSeries& s : series) {
    // A remark that applies to all points is written once, beside the line.
    const std::string name = s.points.front().name;
    if (!name.empty() && std::all_of(s.points.begin(), s.points.end(),
                                     [&](const auto& point) { return point.name == name; })) {
      s.name = name;
      for (report::ChartPoint& point : s.points) point.name.clear();
    }
    std::stable_sort(s.points.begin(), s.points.end(),
                     [](const auto& a, const auto& b) { return a.x < b.x; });
  }
  return series;
}

// Returns the ratio of the whole model if the layers that evict reach `ratio`.
double ToModelRatio(const Report& of, double ratio) {
  const std::vector<uint32_t> evicting = EvictingLayers(of.result);
  double bytes = 0, all = 0;
  for (const LayerKv& layer : of.snapshot.layers) {
    const auto own = static_cast<double>(layer.k.bytes() + (layer.v ? layer.v->bytes() : 0));
    all += own;
    if (std::ranges::count(evicting, layer.index) != 0) bytes += own;
  }
  return all == 0 ? ratio : all / (all - bytes * (1 - 1 / ratio));
}

// Returns the requested ratios, converted to those of the whole model.
std::vector<report::ChartTarget> ListChartTargets(const Report& of) {
  std::vector<report::ChartTarget> targets;
  for (const ReplayRun& run : of.result.runs) {
    const double ratio = ToModelRatio(of, run.target_ratio());
    const bool known = std::any_of(targets.begin(), targets.end(),
                                   [&](const auto& target) { return target.at == ratio; });
    if (std::isfinite(ratio) && !known) targets.push_back({ratio, run.target_text()});
  }
  std::sort(targets.begin(), targets.end(),
            [](const auto& a, const auto& b) { return a.at < b.at; });
  return targets;
}

// Describes the request, as a figure may be read without the page.
std::string BudgetText(const ReplayResult& result) {
  std::vector<std::string> targets;
  for (const ReplayRun& run : result.runs) {
    const std::string text = run.target_text();
    if (std::count(targets.begin(), targets.end(), text) == 0) targets.push_back(text);
  }
  return fmt::format("Budgets {}; {} of {} layers evict; prompt of {} tokens, {} decoded",
                     fmt::join(targets, ", "), EvictingLayers(result).size(),
                     result.runs.front().schedules.size(), result.prompt,
                     result.end - result.prompt);
}

std::string RunText(const ReplayRun& run) {
  return fmt::format("{} at target {}", run.policy_text(), run.target_text());
}

// A kind of loss, shown in a panel.
struct Loss {
  std::string name, y_label, caption;
  report::Unit unit;
  RunValue value;
};

std::vector<Loss> CollectLosses(const ReplayResult& result) {
  std::vector<Loss> losses;
  if (const ReplayRun* predicted = FirstPredicted(result)) {
    losses.push_back({"Expected KL", "expected KL of the next token, nats",
                      fmt::format("It is {}.", ExpectedKlText(*predicted->predicted_kl)),
                      report::Unit::kMeasured, [](const ReplayRun& run) {
                        return run.predicted_kl ? run.predicted_kl->expected() : NAN;
                      }});
  }
  const bool all_evict = EvictingLayers(result).size() == result.runs.front().schedules.size();
  if (result.runs.front().quality && result.runs.front().quality->has_output) {
    losses.push_back({"Attention output error", "|O - O'| / |O| over evicting rows",
                      fmt::format("The error of the attention output, of all rows and layers "
                                  "together. {} (docs/closed-loop.md).",
                                  all_evict ? "Where all layers evict, as here, it predicts harm "
                                              "best of the figures that need no gradients"
                                            : "Where only some layers evict, as here, 1 - cosine "
                                              "predicts harm better than it does"),
                      report::Unit::kPercent,
                      [](const ReplayRun& run) { return run.evicting->output_error_frobenius; }});
  }
  losses.push_back(
      {"Attention mass lost", "mass lost, mean of evicting rows",
       "Every policy keeps as many tokens at the same moments, but block keeps whole blocks, "
       "and snapkv and pyramid may compress the prompt alone; oracle-mass knows the future.",
       report::Unit::kPercent, [](const ReplayRun& run) { return 1 - run.evicting->mass.mean; }});
  return losses;
}

double MeanBytes(const ReplayRun& run) {
  double sum = 0;
  for (const StepBytes& step : run.steps) sum += static_cast<double>(step.kept);
  return run.steps.empty() ? NAN : sum / static_cast<double>(run.steps.size());
}

void AddCurves(const Report& of, report::Page& page) {
  const ReplayResult& result = of.result;
  const bool any = std::any_of(result.runs.begin(), result.runs.end(),
                               [](const ReplayRun& run) { return run.quality.has_value(); });
  if (!any) return;
  page.Heading("Loss against what was achieved");
  const std::vector<Loss> losses = CollectLosses(result);
  const auto add = [&](const Loss& loss, const RunValue& x, LineChart chart,
                       const std::string& caption) {
    chart.y_label = loss.y_label;
    chart.y_unit = loss.unit;
    chart.markers = true;
    chart.log_y = loss.unit == report::Unit::kMeasured;  // nats span powers of ten
    if (!chart.log_y) chart.y_min = 0;
    chart.series = ByPolicy(result, x, loss.value);
    page.Figure(Render(chart), caption);
  };
  for (const Loss& loss : losses) {
    LineChart chart;
    chart.title = loss.name + " against the achieved ratio";
    chart.x_label = "ratio of the whole model, mean of the steps";
    chart.x_unit = report::Unit::kFactor;
    chart.targets = ListChartTargets(of);
    add(
        loss, [](const ReplayRun& run) { return run.mean_ratio(); }, std::move(chart),
        fmt::format(
            "{}: lower is better. {}{}", loss.name, loss.caption,
            &loss == &losses.front() ? " Dotted: the targets, as ratios of the whole model." : ""));
    if (&loss == &losses.front()) page.Feature(BudgetText(result));
  }
  LineChart chart;
  chart.title = losses.front().name + " against bytes held";
  chart.x_label = "bytes of K and V held, mean of the steps";
  chart.x_unit = report::Unit::kBytes;
  add(losses.front(), MeanBytes, std::move(chart),
      losses.front().name + " against what stays in memory: low and left is better.");
}

void AddBytes(const ReplayRun& run, report::Page& page) {
  LineChart chart;
  chart.title = "Bytes of K and V held at each decode step";
  chart.x_label = "position";
  chart.y_label = "bytes held by all layers";
  chart.y_unit = report::Unit::kBytes;
  chart.y_min = 0;
  ChartSeries full{"full", {}, false, false}, kept{"kept", {}, true, false};
  ChartSeries allocated{"allocated", {}, false, true};
  const size_t stride = std::max<size_t>(1, run.steps.size() / kMostPoints);
  for (size_t i = 0; i < run.steps.size(); ++i) {
    if (i % stride != 0 && i + 1 != run.steps.size()) continue;
    const auto x = static_cast<double>(run.steps[i].token);
    full.points.push_back({x, static_cast<double>(run.steps[i].full)});
    kept.points.push_back({x, static_cast<double>(run.steps[i].kept)});
    allocated.points.push_back({x, static_cast<double>(run.steps[i].allocated)});
  }
  chart.series = {kept, full};
  if (run.engine) chart.series.push_back(allocated);
  page.Figure(Render(chart), run.engine ? "The engine's buffers never shrink: what is evicted "
                                          "frees room for new tokens, not memory."
                                        : "Memory held if evicted rows are freed.");
}

// Returns the number of steps that a position stayed, summed over units; `steps` of each unit if it
// was never evicted.
uint64_t CountKept(const LayerPlan& plan, uint64_t position, const ReplayResult& result) {
  uint64_t held = 0;
  for (uint32_t unit = 0; unit < plan.units; ++unit) {
    const uint64_t last = plan.last_seen(unit, position);
    held += last == LayerPlan::kStays
                ? result.end - std::min(result.prompt, result.end)
                : std::min(last + 1, result.end) - std::min(result.prompt, last + 1);
  }
  return held;
}

// Returns columns of a few positions each; neighbours of the same shade become one span.
StripRow LayerRow(const ReplayResult& result, const LayerPlan& plan, uint64_t columns) {
  StripRow row{fmt::format("L{}", plan.layer), {}};
  const uint64_t end = result.end, steps = std::max<uint64_t>(1, end - result.prompt);
  const uint64_t width = (end + columns - 1) / std::max<uint64_t>(1, columns);
  const auto add = [&](uint64_t begin, uint64_t next, double share) {
    const bool kept = share >= 1;
    const std::string tip =
        kept ? fmt::format("layer {}: positions {} to {} kept", plan.layer, begin, next - 1)
             : fmt::format("layer {}: positions {} to {} held for {:.0f}% of the decode steps",
                           plan.layer, begin, next - 1, 100 * share);
    row.spans.push_back({static_cast<double>(begin), static_cast<double>(next),
                         kept ? 1 : 0.75 * share, kept ? 0 : 1, tip});
  };
  uint64_t span_begin = 0;
  double span_share = -1;
  for (uint64_t begin = 0; begin < end; begin += width) {
    const uint64_t next = std::min(end, begin + width);
    uint64_t held = 0;
    bool all = true;
    for (uint64_t p = begin; p < next; ++p) {
      for (uint32_t unit = 0; unit < plan.units; ++unit) {
        all = all && plan.last_seen(unit, p) == LayerPlan::kStays;
      }
      held += CountKept(plan, p, result);
    }
    const auto most = static_cast<double>((next - begin) * plan.units * steps);
    const double share =
        all ? 1 : std::min(0.95, std::round(static_cast<double>(held) / most * kShades) / kShades);
    if (share == span_share) continue;
    if (begin > 0) add(span_begin, begin, span_share);
    span_begin = begin;
    span_share = share;
  }
  if (end > 0) add(span_begin, end, span_share);
  return row;
}

void AddMap(const ReplayResult& result, const ReplayRun& run, report::Page& page) {
  page.Heading("What stays: " + RunText(run));
  StripMap map;
  map.title = "Kept tokens by layer and position";
  map.x_label = fmt::format("position (prefill ends at {})", result.prompt);
  map.x_end = static_cast<double>(result.end);
  map.high_label = "kept to the end";
  map.second_label = "evicted; fainter: sooner";
  const uint64_t columns = report::MapColumns(result.end, run.plans.size());
  size_t cells = 0;
  for (const LayerPlan& plan : run.plans) {
    map.rows.push_back(LayerRow(result, plan, columns));
    cells += map.rows.back().spans.size();
  }
  if (!report::HasRoomForTips(cells, 1)) {
    for (StripRow& row : map.rows) {
      for (StripSpan& span : row.spans) span.tip.clear();
    }
  }
  page.Figure(Render(map),
              "Blue: held to the end. Orange: evicted, the fainter the sooner. One row per traced "
              "layer, one column per original position, or a few where there are many.");
  AddBytes(run, page);
}

void AddHeads(const ReplayRun& run, report::Page& page) {
  if (run.layers.empty()) return;
  page.Heading("Where it costs: " + RunText(run));
  const bool output = run.layers.front().summary.has_output;
  double most = 0;
  const auto value_of = [&](const AttentionSummary& head) {
    return output ? head.output_error.mean : 1 - head.mass.mean;
  };
  for (const LayerQuality& layer : run.layers) {
    for (const AttentionSummary& head : layer.heads) most = std::max(most, value_of(head));
  }
  StripMap map;
  map.title = "Error by layer and head";
  map.x_label = "query head";
  map.unit_ticks = true;
  map.low_label = "0";
  map.high_label = Percent(most);
  for (const LayerQuality& layer : run.layers) {
    StripRow row{fmt::format("L{}", layer.layer), {}};
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      const double value = value_of(layer.heads[h]);
      if (std::isnan(value)) continue;  // no row has a figure for this head
      const auto x = static_cast<double>(h);
      row.spans.push_back({x, x + 1, most > 0 ? value / most : 0, 0,
                           fmt::format("layer {} head {}: {}", layer.layer, h, Percent(value))});
    }
    map.x_end = static_cast<double>(std::max<size_t>(1, layer.heads.size()));
    map.rows.push_back(std::move(row));
  }
  page.Figure(Render(map),
              output ? "Mean error of the attention output, layers down, query heads across."
                     : "Mean attention mass lost, layers down, query heads across.");
  LineChart steps;
  steps.title = "Attention mass lost at each decode step";
  steps.x_label = "decode step";
  steps.y_label = "attention mass lost, mean of heads";
  steps.y_min = 0;
  steps.y_unit = report::Unit::kPercent;
  for (const LayerQuality& layer : run.layers) {
    if (steps.series.size() == 8) break;
    ChartSeries series{fmt::format("layer {}", layer.layer), {}, false, false};
    const size_t stride = std::max<size_t>(1, layer.step_mass.size() / kMostPointsOfLayer);
    for (size_t i = 0; i < layer.step_mass.size(); i += stride) {
      series.points.push_back({static_cast<double>(i), 1 - layer.step_mass[i]});
    }
    steps.series.push_back(std::move(series));
  }
  page.Figure(Render(steps), run.layers.size() > 8 ? "The first eight traced layers."
                                                   : "One line per traced layer.");
}

std::string Subtitle(const Report& of) {
  return fmt::format("{} ({}) with {} of {} ({}); engine {}, scores {}", of.snapshot.source.path,
                     ShapeText(of.snapshot, of.model), Name(of.trace.level), of.trace.path,
                     of.trace.format, EngineText(of.result), Name(of.result.weights));
}

}  // namespace

TextTable RunTable(const ReplayResult& result) {
  const Fields<ReplayRun> columns = SelectColumns(result);
  TextTable table{TextHead(columns), {}};
  for (const ReplayRun& run : result.runs) table.rows.push_back(TextRow(columns, run));
  return table;
}

report::Page ReportPage(const Report& of) {
  const ReplayResult& result = of.result;
  const ReplayRun& run = MainRun(result);
  report::Page page("Eviction replay", Subtitle(of));
  std::vector<std::pair<std::string, std::string>> facts = {
      {"true ratio", format::Factor(run.ratio())},
      {"mean ratio", format::Factor(run.mean_ratio())},
      {"K and V at the end",
       report::ShortBytes(run.steps.empty() ? 0 : static_cast<double>(run.steps.back().kept))},
      {"layers traced",
       fmt::format("{} of {}", result.traced_layers.size(), of.snapshot.layers.size())},
      {"decode steps", std::to_string(result.end - result.prompt)}};
  if (run.engine) {
    facts.insert(facts.begin() + 1,
                 {"the engine says", fmt::format("{:.4f}x", run.engine->reported_ratio)});
  }
  if (run.quality) {
    if (run.predicted_kl) facts.push_back({"expected KL, nats", FormatNats(run)});
    if (run.quality->has_output) facts.push_back({"output error", FormatError(*run.evicting)});
    facts.push_back({"attention mass kept", Shown(run.evicting->mass, &Distribution::mean)});
  }
  page.Facts(facts, RunText(run));
  if (run.engine) page.Paragraph(std::string(result.engine->ratio_remark));
  std::vector<std::string> notes = result.notes;
  notes.insert(notes.end(), result.warnings.begin(), result.warnings.end());
  for (const ReplayRun& each : result.runs) {
    if (each.nothing_because.empty()) continue;
    notes.push_back(
        fmt::format("{} at {}: {}", each.policy, each.target_text(), each.nothing_because));
  }
  AddCurves(of, page);
  page.Heading("Runs");
  std::vector<size_t> strong;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    if (&result.runs[i] == &run) strong.push_back(i);
  }
  page.Table(RunTable(result), strong);
  AddMap(result, run, page);
  AddHeads(run, page);
  if (run.quality) {
    notes.push_back(
        "Attention figures are over evicting rows: queries of a layer that lose a key in some "
        "head. Those named (all rows) are diluted by rows and layers that lose nothing.");
  }
  notes.push_back("Open loop: hidden states of later layers do not react to what was evicted.");
  page.Notes("Remarks", notes);
  return page;
}

}  // namespace kv::eviction
