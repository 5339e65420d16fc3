// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/summary_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/gate/engine_text.h"
#include "lib/gate/summary_view.h"
#include "lib/report/html.h"
#include "lib/report/svg.h"

namespace kv::gate {
namespace {

using report::ChartSeries;
using report::LineChart;
using report::Page;
using report::Record;
using report::StripMap;
using report::Tone;

constexpr size_t kMaxPoints = 400;  // of one line: more than a screen shows

Tone ToneOf(Verdict verdict) {
  if (verdict == Verdict::kPass) return Tone::kGood;
  return verdict == Verdict::kFail ? Tone::kBad : Tone::kOpen;
}

std::string Counted(size_t count, std::string_view what) {
  return count == 0 ? std::string() : fmt::format("{} {}", count, what);
}

std::string CountText(const SummaryView& view) {
  std::string text;
  for (const std::string& part : {Counted(view.Count(Verdict::kFail), "failed"),
                                  Counted(view.Count(Verdict::kPass), "passed"),
                                  Counted(view.Count(Verdict::kNotRun), "not run")}) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text.empty() ? "no cases" : text;
}

void AddVerdict(const SummaryView& view, Page& page) {
  std::string text = CountText(view);
  const auto failed = std::find_if(view.cases.begin(), view.cases.end(),
                                   [](const CaseView& c) { return c.verdict == Verdict::kFail; });
  if (!view.reason.empty()) {
    text += ". " + view.reason;
  } else if (failed != view.cases.end()) {
    const RuleView* rule = failed->Deciding();
    text += ". " + failed->name + ": ";
    text += rule != nullptr && rule->verdict == Verdict::kFail
                ? rule->metric + " is " + rule->Sentence()
                : failed->reason;
  }
  page.Verdict(view.pass ? Tone::kGood : Tone::kBad, view.pass ? "Pass" : "Fail", text);
}

std::string DecidingText(const CaseView& c) {
  const RuleView* rule = c.Deciding();
  if (c.verdict == Verdict::kNotRun || rule == nullptr || rule->verdict != c.verdict) {
    return c.reason;
  }
  return rule->metric + ": " + rule->Sentence();
}

std::optional<double> DecidingGauge(const CaseView& c) {
  const RuleView* rule = c.Deciding();
  return c.verdict != Verdict::kNotRun && rule != nullptr ? rule->Gauge() : std::nullopt;
}

void AddOverview(const SummaryView& view, Page& page) {
  page.Heading("Cases");
  std::vector<Record> records;
  for (const CaseView& c : view.cases) {
    records.push_back({ToneOf(c.verdict),
                       std::string(Word(c.verdict)),
                       {c.name, c.mode, DecidingText(c)},
                       DecidingGauge(c)});
  }
  page.Records({"", "case", "mode", "decided by"}, records, true);
}

std::string EngineWord(const RuleView& rule) {
  std::string text = rule.engine_value ? FigureText(rule.metric, *rule.engine_value) : "";
  if (rule.engine_pass)
    text += (text.empty() ? "" : ", ") + std::string(*rule.engine_pass ? "pass" : "fail");
  return text;
}

void AddRules(const CaseView& c, Page& page) {
  if (c.rules.empty()) return;
  const bool engine = std::any_of(c.rules.begin(), c.rules.end(), [](const RuleView& rule) {
    return rule.engine_value || rule.engine_pass;
  });
  std::vector<Record> records;
  for (const RuleView& rule : c.rules) {
    std::string remark = rule.reason;
    if (rule.baseline) {
      remark += fmt::format("{}was {}", remark.empty() ? "" : "; ",
                            FigureText(rule.metric, *rule.baseline));
    }
    if (!rule.where.empty()) remark += (remark.empty() ? "" : "; ") + rule.where;
    Record record{ToneOf(rule.verdict),
                  std::string(Word(rule.verdict)),
                  {rule.metric, rule.Sentence()},
                  rule.verdict == Verdict::kNotRun ? std::nullopt : rule.Gauge()};
    if (engine) record.cells.push_back(EngineWord(rule));
    record.cells.push_back(remark);
    records.push_back(std::move(record));
  }
  std::vector<std::string> header = {"", "rule", "value"};
  if (engine) header.push_back("the engine says");
  header.push_back("remark");
  page.Records(header, records);
  std::vector<std::string> shown;
  for (const RuleView& rule : c.rules) {
    const bool known = std::count(shown.begin(), shown.end(), rule.reproduce) != 0;
    if (rule.verdict != Verdict::kFail || rule.reproduce.empty() || known) continue;
    page.Command(rule.reproduce);
    shown.push_back(rule.reproduce);
  }
}

// What the original calls a figure, and the figure that answers the question behind it.
struct Pair {
  const char *question, *engine, *truth;
};
constexpr Pair kPairs[] = {
    {"eviction", "lossy_best", "lossy_worst"},
    {"eviction of real prompts", "candidate_lossy_ratio_avg", "lossy_worst"},
    {"lossless coding", "lossless_selected_value", "measured_ratio"},
    {"lossless coding of real prompts", "candidate_lossless_ratio_avg", "measured_ratio"},
    {"whole model", "candidate_runtime_total_ratio_avg", "whole_model_ratio"},
    {"content", "kv_content_consistency_pass", "content.compared_ranges"},
    {"decode speed", "decode_drop_ratio", "attention_drop_ratio"}};

const Json* FigureOf(const std::vector<std::pair<std::string, Json>>& figures,
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

void AddPairs(const CaseView& c, Page& page) {
  if (c.truth.empty()) return;
  std::vector<std::vector<std::string>> rows = {
      {"question", "the engine's figure", "", "what it is", ""}};
  for (const Pair& pair : kPairs) {
    const Json *engine = FigureOf(c.engine, pair.engine), *truth = FigureOf(c.truth, pair.truth);
    if (engine == nullptr && truth == nullptr) continue;
    rows.push_back({pair.question, pair.engine, ValueText(pair.engine, engine), pair.truth,
                    ValueText(pair.truth, truth)});
  }
  if (rows.size() < 2) return;
  page.Paragraph("What the engine calls a figure, and the one that answers the question:");
  page.Table(rows);
}

LineChart LayerChart(const CaseView& c, std::string title) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "layer";
  chart.markers = c.layers.size() <= 64;
  return chart;
}

void AddLine(const CaseView& c, std::string name, std::optional<double> LayerView::*figure,
             LineChart& chart) {
  ChartSeries series{std::move(name), {}, chart.series.empty(), false};
  for (const LayerView& layer : c.layers) {
    if (layer.*figure) series.points.push_back({layer.layer, *(layer.*figure)});
  }
  if (!series.points.empty()) chart.series.push_back(std::move(series));
}

void AddLayers(const CaseView& c, Page& page) {
  LineChart ratios = LayerChart(c, "Lossless ratio per layer");
  ratios.y_label = "ratio, of verified bytes";
  AddLine(c, "K", &LayerView::k_ratio, ratios);
  AddLine(c, "V", &LayerView::v_ratio, ratios);
  AddLine(c, "K and V", &LayerView::ratio, ratios);
  if (!ratios.series.empty()) {
    page.Figure(Render(ratios), "Lossless ratio of each layer. Higher is better; 1 saves nothing.");
  }
  LineChart errors = LayerChart(c, "Attention error per layer");
  errors.y_label = "attention error, mean";
  errors.y_min = 0;
  AddLine(c, "error", &LayerView::error, errors);
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
        begin, end, [](const PointView& a, const PointView& b) { return a.bytes < b.bytes; });
    series.points.push_back({most->token, most->bytes});
  }
  series.points.push_back({c.resident.back().token, c.resident.back().bytes});
  chart.series.push_back(std::move(series));
  page.Figure(Render(chart), "K and V held at each token: raw values, blobs and caches.");
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
  page.EndFold();
}

void AddCase(const CaseView& c, Page& page) {
  std::string remark = c.mode.empty() ? "" : c.mode + " mode";
  if (!c.origin.empty() && c.origin != "none") {
    const std::string origin = c.origin == "replay"        ? "replayed here"
                               : c.origin == "engine_logs" ? "from the engine's logs"
                               : c.origin == "engine"      ? "as the engine's suite says"
                                                           : c.origin;
    remark += (remark.empty() ? "" : ", ") + origin;
  }
  page.Entry(ToneOf(c.verdict), Word(c.verdict), c.name, remark);
  if (!c.reason.empty()) page.Paragraph(c.reason);
  AddRules(c, page);
  AddPairs(c, page);
  AddLayers(c, page);
  AddBytes(c, page);
  AddFigures(c, page);
  if (!c.notes.empty()) {
    page.Fold(fmt::format("{} remark{}", c.notes.size(), c.notes.size() == 1 ? "" : "s"));
    page.Notes("Remarks", c.notes);
    page.EndFold();
  }
}

// Names of cases over all runs, in the order of the newest, older ones after.
std::vector<std::string> CaseNames(const std::vector<SummaryView>& history) {
  std::vector<std::string> names;
  for (auto run = history.rbegin(); run != history.rend(); ++run) {
    for (const CaseView& c : run->cases) {
      if (std::find(names.begin(), names.end(), c.name) == names.end()) names.push_back(c.name);
    }
  }
  return names;
}

const CaseView* CaseIn(const SummaryView& view, const std::string& name) {
  const auto found = std::find_if(view.cases.begin(), view.cases.end(),
                                  [&](const CaseView& c) { return c.name == name; });
  return found == view.cases.end() ? nullptr : &*found;
}

std::string RunName(const SummaryView& view) {
  return view.generated_at.empty() ? view.file : view.generated_at;
}

void AddVerdictMap(const std::vector<SummaryView>& history, Page& page) {
  StripMap map;
  map.title = "Verdicts by case and run";
  map.x_label = "run, the newest on the right";
  map.x_end = static_cast<double>(history.size());
  map.unit_ticks = true;
  map.second_label = "failed";
  map.low_label = "passed";
  for (const std::string& name : CaseNames(history)) {
    report::StripRow row{name, {}};
    for (size_t i = 0; i < history.size(); ++i) {
      const CaseView* c = CaseIn(history[i], name);
      if (c == nullptr) continue;
      const auto x = static_cast<double>(i);
      const double strength = c->verdict == Verdict::kNotRun ? NAN : 0.9;
      row.spans.push_back({x, x + 1, strength, c->verdict == Verdict::kFail ? 1 : 0,
                           fmt::format("{}: {}", RunName(history[i]), Word(c->verdict))});
    }
    map.rows.push_back(std::move(row));
  }
  page.Figure(Render(map), "One column per run. Blue: passed. Orange: failed. Outlined: not run.");
}

struct HistoryFigure {
  const char *name, *label, *caption;
  bool bytes;
};
constexpr HistoryFigure kHistory[] = {
    {"whole_model_ratio", "ratio", "Ratio of the whole model. Higher is better.", false},
    {"measured_ratio", "ratio", "Lossless ratio of verified bytes. Higher is better.", false},
    {"lossy_best", "ratio", "lossy_best: the best row of each case.", false},
    {"attention_error.mean", "error", "Mean attention error. Lower is better.", false},
    {"resident_bytes.peak", "bytes", "Most bytes of K and V held. Lower is better.", true},
    {"decode_drop_ratio", "share", "Decode speed lost against the baseline. Lower is better.",
     false}};

void AddHistory(const std::vector<SummaryView>& history, Page& page) {
  if (history.size() < 2) return;
  page.Heading("History");
  std::vector<Record> records;
  for (auto run = history.rbegin(); run != history.rend(); ++run) {
    records.push_back({run->pass ? Tone::kGood : Tone::kBad,
                       run->pass ? "pass" : "fail",
                       {RunName(*run), CountText(*run), run->tool}});
  }
  page.Records({"", "run", "cases", "by"}, records);
  AddVerdictMap(history, page);
  for (const HistoryFigure& figure : kHistory) {
    LineChart chart;
    chart.title = figure.name;
    chart.x_label = "run";
    chart.y_label = figure.label;
    chart.markers = true;
    chart.bytes = figure.bytes;
    bool any_line = false;
    for (const std::string& name : CaseNames(history)) {
      ChartSeries series{name, {}, false, false};
      for (size_t i = 0; i < history.size(); ++i) {
        const CaseView* c = CaseIn(history[i], name);
        const auto value = c == nullptr ? std::nullopt : c->Figure(figure.name);
        if (value) series.points.push_back({static_cast<double>(i), *value});
      }
      any_line |= series.points.size() > 1;
      if (!series.points.empty() && chart.series.size() < 8) {
        chart.series.push_back(std::move(series));
      }
    }
    if (any_line) page.Figure(Render(chart), figure.caption);
  }
}

// The oldest first. ISO 8601 sorts as text.
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

std::vector<std::string> Remarks(const SummaryView& view) {
  std::vector<std::string> remarks;
  if (view.noise) {
    remarks.push_back(fmt::format(
        "Repeated baselines differ by {}: no difference in speed below that says anything.",
        FigureText("noise", *view.noise)));
  }
  if (view.is_original) {
    remarks = {
        "This summary is the engine's own. Its *_best figures are the largest of any row, also "
        "where more is worse; one good row passes a ratio.",
        "lossless_selected_value is an offline estimate over the first layers, not a figure of "
        "these runs.",
        "kv_content_consistency_pass compares no content: it counts log lines, queue activity and "
        "fallbacks.",
        "decode_drop_ratio sets the mean of the rows against the best row of another batch."};
  } else {
    remarks.push_back("A rule that was not run proves nothing: it is neither passed nor failed.");
  }
  return remarks;
}

}  // namespace

const Summary& Newest(std::span<const Summary> summaries) { return *InOrder(summaries).back(); }

std::string SummaryPage(std::span<const Summary> summaries, std::string_view footer) {
  std::vector<SummaryView> history;
  for (const Summary* summary : InOrder(summaries)) history.push_back(ViewOf(*summary));
  const SummaryView& newest = history.back();
  std::string subtitle = newest.file;
  if (!newest.generated_at.empty()) subtitle += ", " + newest.generated_at;
  if (!newest.tool.empty()) subtitle += ", " + newest.tool;
  if (newest.is_original) subtitle += ", by the engine's suite";
  if (!newest.baseline_file.empty()) subtitle += ", against " + newest.baseline_file;
  Page page("KV cache gate", subtitle);
  AddVerdict(newest, page);
  AddOverview(newest, page);
  for (const CaseView& c : newest.cases) AddCase(c, page);
  AddHistory(history, page);
  page.Notes("How to read this", Remarks(newest));
  page.Footer(footer);
  return page.Text();
}

}  // namespace kv::gate
