// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/report/svg.h"

namespace kv::gate {
namespace {

using report::ChartSeries;
using report::GridRow;
using report::LineChart;
using report::Page;
using report::Record;
using report::Tone;

using History = std::vector<SummaryView>;

constexpr size_t kMaxLines = 8;      // in one chart; more lines cannot be told apart
constexpr size_t kMaxCharts = 24;    // a page with more is not looked at
constexpr size_t kMaxColumns = 100;  // of the grid
constexpr size_t kCommitLetters = 10;

const CaseView* CaseIn(const SummaryView& view, const std::string& name) {
  const auto found = std::find_if(view.cases.begin(), view.cases.end(),
                                  [&](const CaseView& c) { return c.name == name; });
  return found == view.cases.end() ? nullptr : &*found;
}

std::optional<double> FigureIn(const SummaryView& view, const std::string& name,
                               std::string_view figure) {
  const CaseView* c = CaseIn(view, name);
  return c == nullptr ? std::nullopt : c->Figure(figure);
}

// Names of cases over all runs: first those that the newest lacks, then those that did not pass in
// it, then the others, each in their order.
std::vector<std::string> CaseNames(const History& history) {
  std::vector<std::string> absent, trouble, fine;
  std::set<std::string> known;
  for (auto run = history.rbegin(); run != history.rend(); ++run) {
    for (const CaseView& c : run->cases) {
      if (!known.insert(c.name).second) continue;
      const bool passed = c.status == Status::kPass;
      (run != history.rbegin() ? absent : passed ? fine : trouble).push_back(c.name);
    }
  }
  absent.insert(absent.end(), trouble.begin(), trouble.end());
  absent.insert(absent.end(), fine.begin(), fine.end());
  return absent;
}

std::string LongName(const SummaryView& view) {
  std::string text = view.commit.empty() ? view.file : view.commit;
  if (!view.generated_at.empty()) text += ", " + view.generated_at;
  return text;
}

// Runs are counted from the oldest: the number is their place in the charts.
void AddRuns(const History& history, Page& page) {
  const bool commits = std::any_of(history.begin(), history.end(),
                                   [](const SummaryView& view) { return !view.commit.empty(); });
  std::vector<Record> records;
  for (size_t i = history.size(); i-- > 0;) {
    const SummaryView& run = history[i];
    Record record{run.pass ? Tone::kGood : Tone::kBad, run.pass ? "pass" : "fail", {}};
    record.cells = {std::to_string(i + 1)};
    if (commits) record.cells.push_back(run.commit.substr(0, kCommitLetters));
    record.cells.insert(record.cells.end(), {run.generated_at.empty() ? run.file : run.generated_at,
                                             CountText(run), run.tool});
    records.push_back(std::move(record));
  }
  if (commits) {
    page.Records({"", "#", "commit", "run", "cases", "by"}, records);
  } else {
    page.Records({"", "#", "run", "cases", "by"}, records);
  }
}

void AddVerdicts(const History& history, Page& page) {
  page.Paragraph("Verdicts by case, the newest run first:");
  const size_t oldest = history.size() - std::min(history.size(), kMaxColumns);
  std::vector<std::pair<std::string, std::string>> header;
  for (size_t i = history.size(); i-- > oldest;) {
    const SummaryView& run = history[i];
    const std::string number = std::to_string(i + 1);
    header.emplace_back(run.commit.empty() ? number : run.commit.substr(0, 7), LongName(run));
  }
  std::vector<GridRow> rows;
  for (const std::string& name : CaseNames(history)) {
    GridRow row{name, {}};
    for (size_t i = history.size(); i-- > oldest;) {
      const CaseView* c = CaseIn(history[i], name);
      const std::string word(c == nullptr ? "absent" : Text(c->status));
      row.cells.push_back({c == nullptr ? Tone::kAbsent : ToneOf(c->status), word,
                           fmt::format("{}: {}", LongName(history[i]), word)});
    }
    rows.push_back(std::move(row));
  }
  page.Grid(header, rows);
}

// "≥ 1.05x"
std::string LimitOf(const RuleOutcome& rule) {
  const Op op = rule.rule.op;
  const std::string_view sign = op == Op::kAtLeast  ? "\u2265"
                                : op == Op::kAtMost ? "\u2264"
                                                    : Name(op);
  return fmt::format("{} {}", sign, FigureText(rule.rule.metric, rule.rule.limit));
}

// How far a figure moved, as a share of what it was.
std::string Delta(const std::optional<double>& older, double now) {
  if (!older) return "-";
  if (*older == now) return "0%";
  if (*older == 0) return "-";
  return fmt::format("{:+.2g}%", 100 * (now - *older) / std::abs(*older));
}

// A rule with a limit of its own, on a figure that can drift.
bool Drifts(const RuleOutcome& rule) {
  return rule.value && !rule.baseline && !rule.rule.is_flag && std::isfinite(rule.rule.limit) &&
         rule.rule.limit != 0 && rule.rule.op != Op::kEqual && rule.rule.op != Op::kDiffers &&
         rule.rule.metric != "evictions" && !rule.rule.metric.starts_with("content.");
}

void AddDeltas(const History& history, Page& page) {
  const SummaryView &newest = history.back(), &last = history[history.size() - 2],
                    &first = history.front();
  std::vector<std::vector<std::string>> rows = {{"case", "figure", "now", "limit",
                                                 "since the run before",
                                                 fmt::format("over all {} runs", history.size())}};
  for (const CaseView& c : newest.cases) {
    for (const RuleOutcome& rule : c.rules) {
      const auto now = c.Figure(rule.rule.metric);
      if (!Drifts(rule) || !now) continue;
      const std::string& metric = rule.rule.metric;
      rows.push_back({c.name, rule.rule.shown(), FigureText(metric, *now), LimitOf(rule),
                      Delta(FigureIn(last, c.name, metric), *now),
                      Delta(FigureIn(first, c.name, metric), *now)});
    }
  }
  if (rows.size() == 1) return;
  page.Paragraph("How far the judged figures moved:");
  page.Table(rows);
}

ChartSeries SeriesOf(const History& history, const std::string& name, std::string_view figure) {
  ChartSeries series{name, {}, false, false};
  for (size_t i = 0; i < history.size(); ++i) {
    const auto value = FigureIn(history[i], name, figure);
    series.points.push_back({static_cast<double>(i + 1), value.value_or(NAN)});  // leaves a gap
  }
  return series;
}

size_t KnownPoints(const ChartSeries& series) {
  return static_cast<size_t>(
      std::count_if(series.points.begin(), series.points.end(),
                    [](const report::ChartPoint& point) { return std::isfinite(point.y); }));
}

// With room around the values and the limits, none of which may lie on an edge.
void Frame(const ChartSeries& series, LineChart& chart) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  const auto add = [&](double y) {
    if (!std::isfinite(y)) return;
    low = std::min(low, y);
    high = std::max(high, y);
  };
  for (const report::ChartPoint& point : series.points) add(point.y);
  for (const report::ChartTarget& target : chart.targets) add(target.at);
  const double room = 0.15 * (high - low);
  if (!(room > 0)) return;
  chart.y_min = low - room;
  chart.y_max = high + room;
}

LineChart NewChart(const HistoryFigure& figure, std::string title) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "run, 1 is the oldest";
  chart.y_label = figure.label;
  chart.markers = chart.whole_x = true;
  chart.bytes = figure.bytes;
  return chart;
}

// A case with limits on the figure has a chart of its own, so that their distance is seen; the
// others share one.
void AddCharts(const History& history, const HistoryFigure& figure, size_t& left, Page& page) {
  LineChart shared = NewChart(figure, std::string(figure.name));
  if (figure.from_zero) shared.y_min = 0;
  bool any_line = false;
  for (const std::string& name : CaseNames(history)) {
    ChartSeries series = SeriesOf(history, name, figure.name);
    if (KnownPoints(series) == 0) continue;
    LineChart own = NewChart(figure, fmt::format("{}: {}", name, figure.name));
    if (const CaseView* c = CaseIn(history.back(), name)) {
      for (const RuleOutcome& rule : c->rules) {
        if (rule.rule.metric != figure.name || !Drifts(rule)) continue;
        own.targets.push_back({rule.rule.limit, LimitOf(rule), true});
      }
    }
    if (own.targets.empty()) {
      any_line |= KnownPoints(series) > 1;
      if (shared.series.size() < kMaxLines) shared.series.push_back(std::move(series));
    } else if (KnownPoints(series) > 1 && left > 0) {
      --left;
      Frame(series, own);
      series.name.clear();
      own.series.push_back(std::move(series));
      page.Figure(Render(own),
                  fmt::format("{}. {} The dotted line is the limit.", name, figure.caption));
    }
  }
  if (any_line && left > 0) {
    --left;
    page.Figure(Render(shared), figure.caption);
  }
}

using report::ChartSeries;
using report::LineChart;
using report::Page;
using report::Tone;

constexpr size_t kMaxPoints = 400;  // of one line: more than a screen shows

std::string Counted(size_t count, std::string_view what) {
  return count == 0 ? std::string() : fmt::format("{} {}", count, what);
}

report::ChartPoint PointOf(const ResidentSample& sample) {
  return {static_cast<double>(sample.token), static_cast<double>(sample.bytes)};
}

LineChart LayerChart(std::string title) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "layer";
  chart.whole_x = true;
  return chart;
}

void AddLine(const CaseView& c, std::string name, std::optional<double> LayerFigures::*figure,
             LineChart& chart) {
  ChartSeries series{std::move(name), {}, chart.series.empty(), false, false};
  for (const LayerFigures& layer : c.layers) {
    if (layer.*figure)
      series.points.push_back({static_cast<double>(layer.layer), *(layer.*figure)});
  }
  if (!series.points.empty()) chart.series.push_back(std::move(series));
}

}  // namespace

std::string RunName(const SummaryView& view) {
  if (!view.commit.empty()) return view.commit.substr(0, kCommitLetters);
  return view.generated_at.empty() ? view.file : view.generated_at;
}

void AddHistory(const History& history, const Engine& engine, Page& page) {
  if (history.size() < 2) return;
  page.Heading("History");
  AddRuns(history, page);
  AddVerdicts(history, page);
  AddDeltas(history, page);
  size_t left = kMaxCharts;
  for (const HistoryFigure& figure : engine.report.history) {
    AddCharts(history, figure, left, page);
  }
}

report::Tone ToneOf(Status status) {
  switch (status) {
    case Status::kPass:
      return Tone::kGood;
    case Status::kFail:
      return Tone::kBad;
    case Status::kInconclusive:
      return Tone::kUnsure;
    case Status::kNotRun:
      return Tone::kOpen;
  }
  return Tone::kOpen;
}

std::string CountText(const SummaryView& view) {
  std::string text;
  for (const std::string& part :
       {Counted(view.Count(Status::kFail), "failed"), Counted(view.Count(Status::kPass), "passed"),
        Counted(view.Count(Status::kInconclusive), "inconclusive"),
        Counted(view.Count(Status::kNotRun), "not run")}) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text.empty() ? "no cases" : text;
}

void AddLayers(const CaseView& c, Page& page) {
  LineChart ratios = LayerChart("Lossless ratio per layer");
  ratios.y_label = "ratio, of verified bytes";
  AddLine(c, "K", &LayerFigures::k_ratio, ratios);
  AddLine(c, "V", &LayerFigures::v_ratio, ratios);
  AddLine(c, "K and V", &LayerFigures::ratio, ratios);
  if (!ratios.series.empty()) {
    page.Figure(Render(ratios), "Lossless ratio of each layer. Higher is better; 1 saves nothing.");
  }
  LineChart errors = LayerChart("Attention error per layer");
  errors.y_label = "attention error, mean";
  errors.y_min = 0;
  AddLine(c, "error", &LayerFigures::attention_error, errors);
  if (!errors.series.empty()) {
    page.Figure(Render(errors),
                "Error of the attention output against the full cache, mean over decode steps.");
  }
}

void AddBytes(const CaseView& c, Page& page) {
  if (c.resident.size() < 2) return;
  LineChart chart;
  chart.title = "Resident bytes over time";
  chart.x_label = "token";
  chart.y_label = "bytes held";
  chart.bytes = true;
  chart.y_min = 0;
  ChartSeries series{"held", {}, true, false};
  const size_t stride = (c.resident.size() + kMaxPoints - 1) / kMaxPoints;
  for (size_t i = 0; i < c.resident.size(); i += stride) {
    // The peak of each stride: a chart that hides it would lie.
    const auto begin = c.resident.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end =
        c.resident.begin() + static_cast<std::ptrdiff_t>(std::min(i + stride, c.resident.size()));
    const auto most = std::max_element(
        begin, end,
        [](const ResidentSample& a, const ResidentSample& b) { return a.bytes < b.bytes; });
    series.points.push_back(PointOf(*most));
  }
  series.points.push_back(PointOf(c.resident.back()));
  chart.series.push_back(std::move(series));
  page.Figure(Render(chart), "K and V held at each token: raw values, blobs and caches.");
}

}  // namespace kv::gate
