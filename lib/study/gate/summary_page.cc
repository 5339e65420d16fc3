// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/report/html.h"
#include "lib/study/gate/summary_charts.h"
#include "lib/study/gate/summary_view.h"

namespace kv::gate {
namespace {

using report::Page;
using report::Record;
using report::Tone;

// With the signs that a page can show.
std::string Pretty(std::string text) {
  // A sign and its number stay on one line.
  for (const auto& [plain, sign] :
       {std::pair{" >= ", "\u00a0\u2265\u00a0"}, std::pair{" <= ", "\u00a0\u2264\u00a0"}}) {
    for (size_t at = text.find(plain); at != std::string::npos; at = text.find(plain, at)) {
      text.replace(at, 4, sign);
    }
  }
  return text;
}

std::string BesideRule(const CaseView& c, const RuleOutcome& rule, const EngineReport& report) {
  return Beside(report, rule.rule.metric, [&](std::string_view name) { return c.Figure(name); });
}

std::string DecidingText(const CaseView& c, const EngineReport& report) {
  const RuleOutcome* rule = c.Deciding();
  if (c.status == Status::kNotRun || rule == nullptr || rule->status != c.status) {
    return c.reason;
  }
  return rule->rule.shown() + ": " + Pretty(Sentence(*rule)) + BesideRule(c, *rule, report);
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

std::optional<double> DecidingGauge(const CaseView& c) {
  const RuleOutcome* rule = c.Deciding();
  return c.status != Status::kNotRun && rule != nullptr ? Gauge(*rule) : std::nullopt;
}

// What is not there is easily overlooked: it comes first.
void AddAbsent(const std::vector<SummaryView>& history, Page& page) {
  const SummaryView& newest = history.back();
  std::vector<Record> records;
  const auto add = [&](const std::string& name, const std::string& mode, const std::string& why) {
    const auto is_it = [&](const auto& c) { return c.name == name; };
    const bool here = std::any_of(newest.cases.begin(), newest.cases.end(), is_it);
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
    records.push_back({ToneOf(c.status),
                       std::string(Text(c.status)),
                       {c.name, c.mode, DecidingText(c, report)},
                       DecidingGauge(c)});
  }
  page.Records({"", "case", "mode", "decided by"}, records, true);
}

std::string EngineWord(const RuleOutcome& rule) {
  std::string text = rule.engine_value ? FigureText(rule.rule.metric, *rule.engine_value) : "";
  if (rule.engine_pass)
    text += (text.empty() ? "" : ", ") + std::string(*rule.engine_pass ? "pass" : "fail");
  return text;
}

// What a rule found. Rules without figures are on yes and no.
std::string ValueCell(const RuleOutcome& rule) {
  const bool has_figures = rule.value || !std::isnan(rule.rule.limit);
  if (has_figures) return Pretty(Sentence(rule));
  if (rule.status == Status::kNotRun) return "not measured";
  return rule.status == Status::kPass ? "yes" : "no";
}

std::string RemarkOf(const RuleOutcome& rule) {
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
    Record record{ToneOf(rule.status),
                  std::string(Text(rule.status)),
                  {rule.rule.shown(), ValueCell(rule) + BesideRule(c, rule, report)},
                  rule.status == Status::kNotRun ? std::nullopt : Gauge(rule),
                  RemarkOf(rule)};
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

void AddPairs(const CaseView& c, const EngineReport& report, Page& page) {
  if (c.truth.empty()) return;
  std::vector<Record> records;
  for (const FigurePair& pair : report.pairs) {
    const Json *engine = FigureOf(c.engine, pair.engine), *truth = FigureOf(c.truth, pair.truth);
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
  page.Paragraph("What the engine calls a figure, and the one that answers the question:");
  page.Records({"", "the engine's figure", "what it is"}, records);
}

void AddRows(const CaseView& c, Page& page) {
  if (c.rows.empty()) return;
  std::vector<std::vector<std::string>> table(1);
  for (const auto& item : c.rows.front().items()) table[0].push_back(item.key());
  for (const Json& row : c.rows) {
    std::vector<std::string> cells;
    for (const std::string& name : table[0]) {
      const auto found = row.find(name);
      cells.push_back(ValueText(name, found == row.end() || found->is_null() ? nullptr : &*found));
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
  page.Entry(ToneOf(c.status), Text(c.status), c.name, remark);
  if (!c.reason.empty()) page.Paragraph(c.reason);
  AddRules(c, report, page);
  AddPairs(c, report, page);
  AddLayers(c, page);
  AddBytes(c, page);
  AddFigures(c, page);
  if (!c.notes.empty()) {
    page.Fold(fmt::format("{} remark{}", c.notes.size(), c.notes.size() == 1 ? "" : "s"));
    page.Notes("Remarks", c.notes);
    page.EndFold();
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

std::vector<std::string> Remarks(const SummaryView& view, const EngineReport& report) {
  std::vector<std::string> remarks;
  if (view.noise) {
    remarks.push_back(fmt::format(
        "Repeated baselines differ by {}: no difference in speed below that says anything.",
        FigureText("noise", *view.noise)));
  }
  if (view.is_original) {
    remarks = {report.remarks.begin(), report.remarks.end()};
  } else {
    remarks.push_back("A rule that was not run proves nothing: it is neither passed nor failed.");
  }
  remarks.push_back("The mark in the middle of a bar is the limit, its length the value.");
  remarks.insert(remarks.end(), view.notes.begin(), view.notes.end());
  return remarks;
}

}  // namespace

const Summary& Newest(std::span<const Summary> summaries) { return *InOrder(summaries).back(); }

report::Page SummaryPage(std::span<const Summary> summaries, std::string_view footer,
                         const Engine& engine) {
  const EngineReport& report = engine.report;
  std::vector<SummaryView> history;
  for (const Summary* summary : InOrder(summaries)) history.push_back(ViewOf(*summary, engine));
  const SummaryView& newest = history.back();
  std::string subtitle = newest.file;
  if (!newest.commit.empty()) subtitle += ", commit " + newest.commit;
  if (!newest.generated_at.empty()) subtitle += ", " + newest.generated_at;
  if (!newest.tool.empty()) subtitle += ", " + newest.tool;
  if (newest.is_original) subtitle += ", by the engine's suite";
  if (!newest.baseline_file.empty()) subtitle += ", against " + newest.baseline_file;
  Page page("KV cache gate", subtitle);
  AddVerdict(newest, report, page);
  AddAbsent(history, page);
  AddOverview(newest, report, page);
  for (const CaseView& c : newest.cases) AddCase(c, report, page);
  AddHistory(history, engine, page);
  page.Notes("How to read this", Remarks(newest, report));
  page.Footer(footer);
  return page;
}

}  // namespace kv::gate
