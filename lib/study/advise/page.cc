// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "lib/report/html.h"
#include "lib/report/svg.h"
#include "lib/study/advise/report.h"
#include "lib/study/advise/savings.h"

namespace kv::advise {
namespace {

// Returns the limits as lines across the charts.
std::vector<report::ChartTarget> ListTargets(LossKind kind, const Limits& limits) {
  std::vector<report::ChartTarget> targets;
  if (limits.loss) {
    targets.push_back({Shown(kind, *limits.loss), "at most " + LossText(kind, *limits.loss), true});
  }
  return targets;
}

// Adds a chart of each plan's loss against `achieved`; the axis tells whether more is better or
// worse.
void AddPlans(const Advice& advice, report::LineChart chart,
              const std::function<double(const Outcome&)>& achieved, std::string_view caption,
              report::Page& page) {
  const LossKind kind = advice.measured().kind;
  chart.y_unit = kind == LossKind::kOutput ? report::Unit::kPercent : report::Unit::kMeasured;
  chart.y_label = LossLabel(kind);
  const auto point_of = [&](const Point& point, std::string name) {
    return report::ChartPoint{achieved(point.outcome), Shown(kind, point.outcome.mean_loss()),
                              std::move(name)};
  };
  // Uniform plans far beyond the limits would squeeze the others against the axis.
  double most = 0;
  for (const Point& point : advice.found.frontier) {
    if (point.outcome.ratio() <= 8) most = std::max(most, Shown(kind, point.outcome.mean_loss()));
  }
  const auto near = [&](const Point& point) {
    return Shown(kind, point.outcome.mean_loss()) <= most;
  };
  report::ChartSeries frontier{"", {}}, advised{"", {}, true, false, false};
  report::ChartSeries uniform{"", {}, false, false, false};
  for (const Point& point : advice.found.frontier) {
    if (near(point)) frontier.points.push_back(point_of(point, ""));
  }
  for (const Point& point : advice.found.uniform) {
    if (near(point)) uniform.points.push_back(point_of(point, ""));
  }
  const auto by_x = [](const auto& a, const auto& b) { return a.x < b.x; };
  std::stable_sort(frontier.points.begin(), frontier.points.end(), by_x);
  // The frontier is labelled only where it is visible.
  if (!frontier.points.empty()) frontier.name = "mixtures";
  if (!uniform.points.empty()) uniform.name = "uniform plans";
  if (advice.found.best) advised.points.push_back(point_of(*advice.found.best, "best eviction"));
  if (advice.found.best_uniform) {
    uniform.points.push_back(point_of(*advice.found.best_uniform, "best uniform"));
  }
  chart.series = {advised, uniform, frontier};
  page.Figure(Render(chart), caption);
}

void AddFrontier(const Advice& advice, const AdviceRequest& request, report::Page& page) {
  const LossKind kind = advice.measured().kind;
  report::LineChart chart;
  chart.title = "Loss against the ratio of the whole model";
  chart.x_label = "ratio of K and V at the end";
  chart.x_unit = report::Unit::kFactor;
  chart.log_x = true;
  chart.y_min = 0;
  chart.targets = ListTargets(kind, request.limits);
  if (request.limits.share < 1) {
    const double ratio = 1 / request.limits.share;
    chart.targets.push_back({ratio, "at least " + format::Factor(ratio)});
  }
  AddPlans(
      advice, chart, [](const Outcome& outcome) { return outcome.ratio(); },
      "Each point is a plan. The line joins the plans that no other plan beats; uniform plans use "
      "one candidate in every layer. Dotted: the limits asked for.",
      page);
  page.Feature(LossRemark(kind));
  chart.title = "Loss against the share of bytes that stays";
  chart.x_label = "Share of K and V bytes kept at the end";
  chart.log_x = false;
  chart.x_unit = report::Unit::kPercent;
  chart.targets = ListTargets(kind, request.limits);
  if (request.limits.share < 1) {
    chart.targets.push_back(
        {request.limits.share, fmt::format("at most {:.3g}%", 100 * request.limits.share)});
  }
  AddPlans(
      advice, chart, [](const Outcome& outcome) { return 1 / outcome.ratio(); },
      "The plans by the bytes that they keep: low and left is better.", page);
}

void AddBest(const Advice& advice, report::Page& page) {
  if (!advice.found.best) {
    page.Paragraph("No plan that evicts alone is within the limits.");
    return;
  }
  const Point& best = *advice.found.best;
  const LossKind kind = advice.measured().kind;
  const Outcome& outcome = best.outcome;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"ratio at the end", format::Factor(outcome.ratio())},
      {"mean of the steps", format::Factor(outcome.mean_ratio())},
      {kind == LossKind::kOutput ? "output error, mean of prompts" : "KL, mean of prompts",
       LossText(kind, outcome.mean_loss())},
      {"expected loss elsewhere", LossText(kind, advice.expected_loss())}};
  if (advice.found.best_uniform) {
    facts.push_back(
        {"best uniform plan", format::Factor(advice.found.best_uniform->outcome.ratio())});
  }
  if (advice.at_context) {
    const AtContext& at = *advice.at_context;
    facts.push_back(
        {fmt::format("of {} at {} tokens", report::ShortBytes(at.full_bytes), at.tokens),
         report::ShortBytes(at.kept_bytes)});
  }
  page.Facts(facts, "The best plan that evicts alone, " + PlanText(advice, best));
  page.Heading("The plan");
  page.Table(PartsTable(advice, best.choice));
}

void AddCheck(const Runs& runs, const Advice& advice, report::Page& page) {
  const LossKind kind = advice.measured().kind;
  page.Heading("How well plans hold on other data");
  page.Paragraph(CheckText(advice) + ".");
  std::vector<std::vector<std::string>> rows = {
      {"left out", "predicted from the rest", "cost there", "ratio there", "within the limits"}};
  for (const Fold& fold : advice.check.folds) {
    const std::string name = advice.check.halves
                                 ? std::string(fold.left_out == 0 ? "first half" : "second half")
                                 : runs[fold.left_out]->name();
    if (!fold.found) {
      rows.push_back({name, "no plan", "-", "-", "-"});
      continue;
    }
    rows.push_back({name, LossText(kind, fold.promised), LossText(kind, fold.left_out_loss),
                    format::Factor(1 / fold.left_out_share), fold.holds ? "yes" : "no"});
  }
  page.Table(rows);
}

std::string Subtitle(const Runs& runs, const AdviceRequest& request, LossKind kind) {
  std::string limits;
  if (request.limits.loss) limits = fmt::format("at most {}", LossText(kind, *request.limits.loss));
  if (request.limits.share < 1) {
    limits += fmt::format("{}ratio at least {}", limits.empty() ? "" : ", ",
                          format::Factor(1 / request.limits.share));
  }
  return fmt::format("{}{} ({}), trace {}, rows of {} layers; {}; {}", runs.front()->name(),
                     runs.size() == 1 ? "" : fmt::format(" and {} more prompts", runs.size() - 1),
                     ShapeText(runs.front()->snapshot(), request.model), runs.front()->trace().path,
                     runs.front()->layers().size(), LossName(kind), limits);
}

}  // namespace

report::Page AdvicePage(const Runs& runs, const AdviceRequest& request, const Advice& advice,
                        const std::optional<Answer>& answer, const std::string& command) {
  report::Page page("What to save", Subtitle(runs, request, advice.measured().kind));
  page.Verdict(answer ? report::Tone::kGood : report::Tone::kBad, answer ? "answer" : "no plan",
               AnswerText(answer));
  if (!command.empty()) page.Command(command);
  page.Heading("Eviction alone");
  AddBest(advice, page);
  page.Heading("Loss against ratio");
  AddFrontier(advice, request, page);
  page.LongTable(PlansTable(advice, advice.found.frontier), "plans that no other plan beats");
  AddCheck(runs, advice, page);
  page.Heading("One candidate for all layers");
  page.LongTable(PlansTable(advice, advice.found.uniform), "candidates");
  std::vector<std::string> notes = advice.notes;
  notes.insert(notes.end(), advice.warnings.begin(), advice.warnings.end());
  page.Notes("Remarks", notes);
  return page;
}

}  // namespace kv::advise
