// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/study/advise/report.h"
#include "lib/study/report/html.h"
#include "lib/study/report/svg.h"

namespace kv::advise {
namespace {

std::string Times(double ratio) { return fmt::format("{:.3g}x", ratio); }

std::vector<std::string> RowOf(const Advice& advice, const Point& point) {
  const LossKind kind = advice.measured().kind;
  const Outcome& outcome = point.outcome;
  return {PlanText(advice, point),
          Times(outcome.ratio()),
          Times(outcome.mean_ratio()),
          LossText(kind, outcome.worst_loss()),
          LossText(kind, outcome.median_loss()),
          fmt::format("{} of {}", UnitsWithoutFirst(advice.measured(), point.choice),
                      point.choice.size())};
}

const std::vector<std::string> kHeader = {"plan",         "ratio",         "mean ratio",
                                          "worst prompt", "median prompt", "without first token"};

void AddFrontier(const Advice& advice, report::Page& page) {
  const LossKind kind = advice.measured().kind;
  report::ScatterChart chart;
  chart.title = "Loss against the ratio of the whole model";
  chart.x_label = "ratio of K and V at the end";
  chart.low_y_is_better = true;
  chart.y_label = kind == LossKind::kOutput ? "output error, mean of prompts"
                                            : "KL to be expected, nats, mean of prompts";
  const auto add = [&](const Point& point, std::string name, bool emphasised) {
    chart.points.push_back({std::move(name), point.outcome.ratio(),
                            Shown(kind, point.outcome.mean_loss()), emphasised});
  };
  // Uniform plans far beyond what is asked for would press the others to the axis.
  double most = 0;
  for (const Point& point : advice.found.frontier) {
    if (point.outcome.ratio() <= 8) most = std::max(most, Shown(kind, point.outcome.mean_loss()));
  }
  for (const Point& point : advice.found.uniform) {
    if (Shown(kind, point.outcome.mean_loss()) <= most) add(point, "", false);
  }
  for (const Point& point : advice.found.frontier) {
    if (Shown(kind, point.outcome.mean_loss()) <= most) add(point, "", false);
  }
  if (advice.found.best_uniform) add(*advice.found.best_uniform, "best uniform", true);
  if (advice.found.best) add(*advice.found.best, "advised", true);
  page.Figure(Render(chart),
              "Each point is a plan. The line joins those that no other one beats; points above it "
              "are candidates that every layer follows alike.",
              true);
}

void AddBest(const Advice& advice, report::Page& page) {
  if (!advice.found.best) {
    page.Verdict(report::Tone::kBad, "no plan", "No plan that was tried is within the limits.");
    return;
  }
  const Point& best = *advice.found.best;
  const LossKind kind = advice.measured().kind;
  const Outcome& outcome = best.outcome;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"ratio at the end", Times(outcome.ratio())},
      {"mean of the steps", Times(outcome.mean_ratio())},
      {kind == LossKind::kOutput ? "output error" : "KL to be expected",
       LossText(kind, advice.expected_loss())}};
  if (advice.found.best_uniform) {
    facts.push_back({"best uniform plan", Times(advice.found.best_uniform->outcome.ratio())});
  }
  if (advice.at_context) {
    const AtContext& at = *advice.at_context;
    facts.push_back(
        {fmt::format("of {} at {} tokens", report::ShortBytes(at.full_bytes), at.tokens),
         report::ShortBytes(at.kept_bytes)});
  }
  page.Facts(facts);
  page.Heading("The plan");
  std::vector<std::vector<std::string>> rows = {{"what stays", "parts", "where"}};
  for (const Part& part : PartsOf(advice, best.choice)) {
    rows.push_back({part.candidate, std::to_string(part.units), part.where});
  }
  page.Table(rows);
}

void AddCheck(const Runs& runs, const Advice& advice, report::Page& page) {
  const LossKind kind = advice.measured().kind;
  page.Heading("How far it carries");
  page.Paragraph(CheckText(advice) + ".");
  std::vector<std::vector<std::string>> rows = {
      {"left out", "promised by the others", "cost there", "ratio there", "within the limits"}};
  for (const Fold& fold : advice.check.folds) {
    const std::string name = advice.check.halves
                                 ? std::string(fold.left_out == 0 ? "first half" : "second half")
                                 : runs[fold.left_out]->name();
    if (!fold.found) {
      rows.push_back({name, "no plan", "-", "-", "-"});
      continue;
    }
    rows.push_back({name, LossText(kind, fold.promised), LossText(kind, fold.left_out_loss),
                    Times(1 / fold.left_out_share), fold.holds ? "yes" : "no"});
  }
  page.Table(rows);
}

std::string Subtitle(const Runs& runs, const AdviceRequest& request, LossKind kind) {
  std::string limits;
  if (request.limits.loss) limits = fmt::format("at most {}", LossText(kind, *request.limits.loss));
  if (request.limits.share < 1) {
    limits += fmt::format("{}ratio at least {}", limits.empty() ? "" : ", ",
                          Times(1 / request.limits.share));
  }
  return fmt::format("{} prompt{}; {}; {}", runs.size(), runs.size() == 1 ? "" : "s",
                     LossName(kind), limits);
}

}  // namespace

std::string AdvicePage(const Runs& runs, const AdviceRequest& request, const Advice& advice,
                       const std::string& footer) {
  report::Page page("Eviction advice", Subtitle(runs, request, advice.measured().kind));
  AddBest(advice, page);
  page.Heading("Loss against ratio");
  AddFrontier(advice, page);
  std::vector<std::vector<std::string>> rows = {kHeader};
  for (const Point& point : advice.found.frontier) rows.push_back(RowOf(advice, point));
  page.Table(rows);
  AddCheck(runs, advice, page);
  page.Heading("One candidate for all layers");
  rows = {kHeader};
  for (const Point& point : advice.found.uniform) rows.push_back(RowOf(advice, point));
  page.Table(rows);
  std::vector<std::string> notes = advice.notes;
  notes.insert(notes.end(), advice.warnings.begin(), advice.warnings.end());
  page.Notes("Remarks", notes);
  page.Footer(footer);
  return page.Text();
}

}  // namespace kv::advise
