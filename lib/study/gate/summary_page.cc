// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "lib/report/html.h"
#include "lib/report/svg.h"
#include "lib/study/gate/summary_view.h"

namespace kv::gate {
namespace {

using report::ChartSeries;
using report::LineChart;
using report::Page;
using report::Record;
using report::Tone;

using History = std::vector<SummaryView>;

constexpr size_t kMaxLines = 8;      // limit of one chart; more lines cannot be told apart
constexpr size_t kMaxPoints = 400;   // points of one line; a screen shows fewer
constexpr size_t kMaxCharts = 24;    // more would make the page unreadable
constexpr size_t kMaxColumns = 100;  // columns of the grid
constexpr size_t kCommitLetters = 10;

Tone ChooseTone(Status status) {
  constexpr Tone kTones[] = {Tone::kGood, Tone::kBad, Tone::kOpen, Tone::kUnsure};
  return kTones[static_cast<size_t>(status)];
}

// Returns "1 failed, 3 passed, 2 not run".
std::string CountText(const SummaryView& view) {
  std::string text;
  for (const auto& [status, word] : {std::pair{Status::kFail, "failed"},
                                     {Status::kPass, "passed"},
                                     {Status::kInconclusive, "inconclusive"},
                                     {Status::kNotRun, "not run"}}) {
    const size_t count = view.Count(status);
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, word);
  }
  return text.empty() ? "no cases" : text;
}

// Returns a run's commit, shortened; else its date, else its file.
std::string RunName(const SummaryView& view) {
  if (!view.commit.empty()) return view.commit.substr(0, kCommitLetters);
  return view.generated_at.empty() ? view.file : view.generated_at;
}

report::ChartPoint MakePoint(const ResidentSample& sample) {
  return {static_cast<double>(sample.token), static_cast<double>(sample.bytes)};
}

using LayerLine = std::pair<const char*, std::optional<double> LayerFigures::*>;

// Adds a chart of figures by layer, unless no layer has one.
void AddLayerChart(const CaseView& c, std::initializer_list<LayerLine> lines, LineChart chart,
                   const char* caption, Page& page) {
  chart.x_label = "layer";
  chart.whole_x = true;
  for (const auto& [name, figure] : lines) {
    ChartSeries series{name, {}, chart.series.empty(), false, false};
    for (const LayerFigures& layer : c.layers) {
      if (layer.*figure)
        series.points.push_back({static_cast<double>(layer.layer), *(layer.*figure)});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  if (!chart.series.empty()) page.Figure(Render(chart), caption);
}

void AddLayers(const CaseView& c, Page& page) {
  LineChart ratios, errors;
  ratios.title = "Lossless ratio per layer";
  ratios.y_label = "ratio, of verified bytes";
  AddLayerChart(c,
                {{"K", &LayerFigures::k_ratio},
                 {"V", &LayerFigures::v_ratio},
                 {"K and V", &LayerFigures::ratio}},
                ratios, "Lossless ratio of each layer. Higher is better; 1 saves nothing.", page);
  errors.title = "Attention error per layer";
  errors.y_label = "attention error, mean";
  errors.y_min = 0;
  AddLayerChart(c, {{"error", &LayerFigures::attention_error}}, errors,
                "Error of the attention output against the full cache, mean over decode steps.",
                page);
}

void AddBytes(const CaseView& c, Page& page) {
  if (c.resident.size() < 2) return;
  LineChart chart;
  chart.title = "Resident bytes over time";
  chart.x_label = "token";
  chart.y_label = "bytes held";
  chart.y_unit = report::Unit::kBytes;
  chart.y_min = 0;
  ChartSeries series{"held", {}, true, false};
  const size_t stride = (c.resident.size() + kMaxPoints - 1) / kMaxPoints;
  for (size_t i = 0; i < c.resident.size(); i += stride) {
    // Shows the peak of each stride, which a chart must not hide.
    const auto part = std::span(c.resident).subspan(i, std::min(stride, c.resident.size() - i));
    const auto most = std::max_element(
        part.begin(), part.end(), [](const auto& x, const auto& y) { return x.bytes < y.bytes; });
    series.points.push_back(MakePoint(*most));
  }
  series.points.push_back(MakePoint(c.resident.back()));
  chart.series.push_back(std::move(series));
  page.Figure(Render(chart), "K and V held at each token: raw values, blobs and caches.");
}

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

// Returns the names of cases over all runs: first those that the newest lacks, then those that did
// not pass in it, then the rest.
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
  std::vector<std::string> header = {"", "#", "run", "cases", "by"};
  if (commits) header.insert(header.begin() + 2, "commit");
  page.Records(header, records);
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
  std::vector<report::GridRow> rows;
  for (const std::string& name : CaseNames(history)) {
    report::GridRow row{name, {}};
    for (size_t i = history.size(); i-- > oldest;) {
      const CaseView* c = CaseIn(history[i], name);
      const std::string word(c == nullptr ? "absent" : Text(c->status));
      row.cells.push_back({c == nullptr ? Tone::kAbsent : ChooseTone(c->status), word,
                           fmt::format("{}: {}", LongName(history[i]), word)});
    }
    rows.push_back(std::move(row));
  }
  page.Grid(header, rows);
}

// Returns "≥ 1.05x".
std::string DescribeLimit(const RuleOutcome& rule) {
  const Op op = rule.rule.op;
  const std::string_view sign = op == Op::kAtLeast  ? "\u2265"
                                : op == Op::kAtMost ? "\u2264"
                                                    : Name(op);
  return fmt::format("{} {}", sign, FigureText(rule.rule.metric, rule.rule.limit));
}

// Returns the relative change of a figure.
std::string Delta(const std::optional<double>& older, double now) {
  if (!older) return "-";
  if (*older == now) return "0%";
  if (*older == 0) return "-";
  return fmt::format("{:+.2g}%", 100 * (now - *older) / std::abs(*older));
}

// Returns true for a rule with its own limit, on a figure that can drift.
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
      rows.push_back({c.name, rule.rule.shown(), FigureText(metric, *now), DescribeLimit(rule),
                      Delta(FigureIn(last, c.name, metric), *now),
                      Delta(FigureIn(first, c.name, metric), *now)});
    }
  }
  if (rows.size() == 1) return;
  page.Paragraph("How far the judged figures moved:");
  page.Table(rows);
}

ChartSeries MakeSeries(const History& history, const std::string& name, std::string_view figure) {
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

// Sets the y axis with a margin, so that no value or limit is on an edge.
void Frame(const ChartSeries& series, LineChart& chart) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  const auto add = [&](double y) {
    if (!report::IsDrawn(y)) return;
    low = std::min(low, y);
    high = std::max(high, y);
  };
  for (const report::ChartPoint& point : series.points) add(point.y);
  for (const report::ChartTarget& target : chart.targets) add(target.at);
  if (!report::IsRange(low, high)) return;
  const double room = 0.15 * (high - low);
  chart.y_min = low - room;
  chart.y_max = high + room;
}

LineChart NewChart(const HistoryFigure& figure, std::string title) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "run, 1 is the oldest";
  chart.y_label = figure.label;
  chart.markers = chart.whole_x = true;
  chart.y_unit = figure.bytes ? report::Unit::kBytes : report::Unit::kNumber;
  return chart;
}

// A case with limits on the figure has its own chart, so that their distance is visible; the others
// share one.
void AddCharts(const History& history, const HistoryFigure& figure, size_t& left, Page& page) {
  LineChart shared = NewChart(figure, std::string(figure.name));
  if (figure.from_zero) shared.y_min = 0;
  bool any_line = false;
  for (const std::string& name : CaseNames(history)) {
    ChartSeries series = MakeSeries(history, name, figure.name);
    if (KnownPoints(series) == 0) continue;
    LineChart own = NewChart(figure, fmt::format("{}: {}", name, figure.name));
    if (const CaseView* c = CaseIn(history.back(), name)) {
      for (const RuleOutcome& rule : c->rules) {
        if (rule.rule.metric != figure.name || !Drifts(rule)) continue;
        own.targets.push_back({rule.rule.limit, DescribeLimit(rule), true});
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

// Adds verdicts and figures over several runs, the oldest first. Adds nothing for a single run.
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

// Replaces comparisons by signs that every page can show.
std::string Pretty(std::string text) {
  // A sign and its number are not separated by a line break.
  for (const auto& [plain, sign] :
       {std::pair{" >= ", "\u00a0\u2265\u00a0"}, std::pair{" <= ", "\u00a0\u2264\u00a0"}}) {
    for (size_t at = text.find(plain); at != std::string::npos; at = text.find(plain, at)) {
      text.replace(at, 4, sign);
    }
  }
  return text;
}

std::string DecidingText(const CaseView& c, const EngineReport& report) {
  const RuleOutcome* rule = c.Deciding();
  if (c.status == Status::kNotRun || rule == nullptr || rule->status != c.status) {
    return c.reason;
  }
  return rule->rule.shown() + ": " + Pretty(Sentence(*rule)) +
         Beside(report, rule->rule.metric, std::bind_front(&CaseView::Figure, &c));
}

void AddVerdict(const SummaryView& view, const EngineReport& report, Page& page) {
  std::string text = CountText(view);
  const auto failed = std::find_if(view.cases.begin(), view.cases.end(),
                                   [](const CaseView& c) { return c.status == Status::kFail; });
  if (!view.reason.empty()) {
    text += ". " + view.reason;
  } else if (failed != view.cases.end()) {
    text += ". " + failed->name + ": " + DecidingText(*failed, report);
  }
  page.Verdict(view.pass ? Tone::kGood : Tone::kBad, view.pass ? "Pass" : "Fail", text);
}

// Missing cases are easily overlooked, so they come first.
void AddAbsent(const std::vector<SummaryView>& history, Page& page) {
  const SummaryView& newest = history.back();
  std::vector<Record> records;
  const auto add = [&](const std::string& name, const std::string& mode, const std::string& why) {
    const bool here = CaseIn(newest, name) != nullptr;
    const bool listed = std::any_of(records.begin(), records.end(),
                                    [&](const Record& record) { return record.cells[0] == name; });
    if (!here && !listed) records.push_back({Tone::kAbsent, "absent", {name, mode, why}});
  };
  if (history.size() > 1) {
    const SummaryView& last = history[history.size() - 2];
    for (const CaseView& c : last.cases) {
      add(c.name, c.mode, fmt::format("{} in the run before, {}", Text(c.status), RunName(last)));
    }
  }
  for (const std::string& name : newest.absent) add(name, "", "in a baseline, not in this run");
  if (records.empty()) return;
  page.Heading("Absent cases");
  page.Records({"", "case", "mode", "why"}, records);
}

void AddOverview(const SummaryView& view, const EngineReport& report, Page& page) {
  page.Heading("Cases");
  std::vector<Record> records;
  for (const CaseView& c : view.cases) {
    const RuleOutcome* rule = c.status == Status::kNotRun ? nullptr : c.Deciding();
    records.push_back({ChooseTone(c.status),
                       std::string(Text(c.status)),
                       {c.name, c.mode, DecidingText(c, report)},
                       rule == nullptr ? std::nullopt : Gauge(*rule)});
  }
  page.Records({"", "case", "mode", "decided by"}, records, true);
}

std::string EngineWord(const RuleOutcome& rule) {
  std::string text = rule.engine_value ? FigureText(rule.rule.metric, *rule.engine_value) : "";
  if (rule.engine_pass)
    text += (text.empty() ? "" : ", ") + std::string(*rule.engine_pass ? "pass" : "fail");
  return text;
}

// Returns the result of a rule. Rules without figures are yes or no.
std::string ValueCell(const RuleOutcome& rule) {
  if (rule.value || !std::isnan(rule.rule.limit)) return Pretty(Sentence(rule));
  if (rule.status == Status::kNotRun) return "not measured";
  return rule.status == Status::kPass ? "yes" : "no";
}

std::string DescribeRemark(const RuleOutcome& rule) {
  std::string remark = Pretty(rule.reason);
  const auto add = [&](const std::string& part) { remark += (remark.empty() ? "" : "; ") + part; };
  if (rule.baseline) add("was " + FigureText(rule.rule.metric, *rule.baseline));
  if (rule.where.known()) add(Text(rule.where, true));
  return remark;
}

void AddRules(const CaseView& c, const EngineReport& report, Page& page) {
  if (c.rules.empty()) return;
  const bool engine = std::any_of(c.rules.begin(), c.rules.end(), [](const RuleOutcome& rule) {
    return rule.engine_value || rule.engine_pass;
  });
  std::vector<Record> records;
  for (const RuleOutcome& rule : c.rules) {
    Record record{
        ChooseTone(rule.status),
        std::string(Text(rule.status)),
        {rule.rule.shown(), ValueCell(rule) + Beside(report, rule.rule.metric,
                                                     std::bind_front(&CaseView::Figure, &c))},
        rule.status == Status::kNotRun ? std::nullopt : Gauge(rule),
        DescribeRemark(rule)};
    if (engine) record.cells.push_back(EngineWord(rule));
    records.push_back(std::move(record));
  }
  std::vector<std::string> header = {"", "rule", "value"};
  if (engine) header.push_back("the engine says");
  page.Records(header, records);
  std::vector<std::string> shown;
  for (const RuleOutcome& rule : c.rules) {
    const bool known = std::count(shown.begin(), shown.end(), rule.reproduce) != 0;
    if (rule.status != Status::kFail || rule.reproduce.empty() || known) continue;
    page.Command(rule.reproduce);
    shown.push_back(rule.reproduce);
  }
}

const Json* FindFigure(const std::vector<std::pair<std::string, Json>>& figures,
                       std::string_view name) {
  for (const auto& [key, value] : figures) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string ValueText(std::string_view name, const Json* value) {
  if (value == nullptr) return "-";
  if (value->is_boolean()) return value->get<bool>() ? "yes" : "no";
  if (value->is_number()) return FigureText(name, value->get<double>());
  return value->is_string() ? value->get<std::string>() : value->dump();
}

void AddPairs(const CaseView& c, const EngineReport& report, Page& page) {
  if (c.truth.empty()) return;
  std::vector<Record> records;
  for (const FigurePair& pair : report.pairs) {
    const Json *engine = FindFigure(c.engine, pair.engine),
               *truth = FindFigure(c.truth, pair.truth);
    if (!pair.suite.empty() && (engine == nullptr || c.suite != pair.suite)) continue;
    if (engine == nullptr && truth == nullptr) continue;
    const auto text = [](std::string_view name, const Json* value) {
      return value == nullptr ? "not measured" : fmt::format("{} {}", ValueText(name, value), name);
    };
    records.push_back({Tone::kOpen,
                       std::string(pair.question),
                       {text(pair.engine, engine), text(pair.truth, truth)}});
  }
  if (records.empty()) return;
  page.Paragraph("The engine's name of a figure, and the figure that answers the question:");
  page.Records({"", "the engine's figure", "what it is"}, records);
}

void AddRows(const CaseView& c, Page& page) {
  if (c.rows.empty()) return;
  std::vector<std::vector<std::string>> table(1);
  for (const auto& item : c.rows.front().items()) table[0].push_back(item.key());
  for (const Json& row : c.rows) {
    std::vector<std::string> cells;
    for (const std::string& name : table[0]) {
      cells.push_back(ValueText(name, Find(row, name)));
    }
    table.push_back(std::move(cells));
  }
  page.Table(table);
}

void AddFigures(const CaseView& c, Page& page) {
  if (c.engine.empty() && c.truth.empty()) return;
  page.Fold("All figures of this case");
  for (const bool truth : {true, false}) {
    const auto& figures = truth ? c.truth : c.engine;
    if (figures.empty()) continue;
    std::vector<std::vector<std::string>> rows = {
        {truth ? "true figure" : "by the engine's definitions", "value"}};
    for (const auto& [name, value] : figures) {
      if (value.is_number() || value.is_boolean()) rows.push_back({name, ValueText(name, &value)});
    }
    if (rows.size() > 1) page.Table(rows);
  }
  AddRows(c, page);
  if (!c.missing.empty()) {
    std::vector<std::vector<std::string>> rows = {{"not measured", "why"}};
    for (const auto& [name, reason] : c.missing) rows.push_back({name, reason});
    page.Table(rows);
  }
  page.EndFold();
}

void AddCase(const CaseView& c, const EngineReport& report, Page& page) {
  std::string remark = c.mode.empty() ? "" : c.mode + " mode";
  if (!c.origin.empty() && c.origin != "none") {
    const std::string origin = c.origin == "replay"        ? "replayed here"
                               : c.origin == "engine_logs" ? "from the engine's logs"
                               : c.origin == "compare"     ? "compared with its reference"
                               : c.origin == "engine"      ? "as the engine's suite says"
                                                           : c.origin;
    remark += (remark.empty() ? "" : ", ") + origin;
  }
  page.Entry(ChooseTone(c.status), Text(c.status), c.name, remark);
  if (!c.reason.empty()) page.Paragraph(c.reason);
  AddRules(c, report, page);
  AddPairs(c, report, page);
  AddLayers(c, page);
  AddBytes(c, page);
  AddFigures(c, page);
  if (!c.notes.empty()) {
    page.Fold(format::Plural(c.notes.size(), "remark"));
    page.Notes("Remarks", c.notes);
    page.EndFold();
  }
}

// Returns the summaries, the oldest first. ISO 8601 sorts as text.
std::vector<const Summary*> InOrder(std::span<const Summary> summaries) {
  std::vector<const Summary*> order;
  for (const Summary& summary : summaries) order.push_back(&summary);
  const auto date = [](const Summary* summary) {
    return TextAt(summary->document, "generated_at");
  };
  const bool dated = std::none_of(order.begin(), order.end(),
                                  [&](const Summary* summary) { return date(summary).empty(); });
  if (dated) {
    std::stable_sort(order.begin(), order.end(),
                     [&](const Summary* a, const Summary* b) { return date(a) < date(b); });
  }
  return order;
}

std::vector<std::string> Remarks(const SummaryView& view, const EngineReport& report) {
  std::vector<std::string> remarks;
  if (view.noise) {
    remarks.push_back(
        fmt::format("Repeated baselines differ by {}: smaller differences in speed mean nothing.",
                    FigureText("noise", *view.noise)));
  }
  if (view.is_original) {
    remarks = {report.remarks.begin(), report.remarks.end()};
  } else {
    remarks.push_back("A rule that was not run has neither passed nor failed.");
  }
  remarks.push_back("The mark in the middle of a bar is the limit, its length the value.");
  remarks.insert(remarks.end(), view.notes.begin(), view.notes.end());
  return remarks;
}

// Returns "FILE, commit C, DATE, TOOL, against BASELINE", as far as the summary has these.
std::string DescribeRun(const SummaryView& view) {
  std::string text = view.file;
  const auto add = [&](std::string_view before, std::string_view part) {
    if (part.empty()) return;
    if (!text.empty()) text += ", ";
    text.append(before).append(part);
  };
  add("commit ", view.commit);
  add("", view.generated_at);
  add("", view.tool);
  if (view.is_original) add("by ", "the engine's suite");
  add("against ", view.baseline_file);
  return text;
}

}  // namespace

const Summary& Newest(std::span<const Summary> summaries) { return *InOrder(summaries).back(); }

report::Page SummaryPage(std::span<const Summary> summaries, const Engine& engine) {
  const EngineReport& report = engine.report;
  std::vector<SummaryView> history;
  for (const Summary* summary : InOrder(summaries)) history.push_back(MakeView(*summary, engine));
  const SummaryView& newest = history.back();
  Page page("KV cache gate", DescribeRun(newest));
  AddVerdict(newest, report, page);
  AddAbsent(history, page);
  AddOverview(newest, report, page);
  for (const CaseView& c : newest.cases) AddCase(c, report, page);
  AddHistory(history, engine, page);
  page.Notes("How to read this", Remarks(newest, report));
  return page;
}

}  // namespace kv::gate
