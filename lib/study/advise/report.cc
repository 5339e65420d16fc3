// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace kv::advise {
namespace {

const Candidate* CandidateOf(const Advice& advice, const Choice& choice, size_t unit) {
  const uint32_t c = advice.measured().units[unit].options[choice[unit]].candidate;
  return c < advice.candidates.size() ? &advice.candidates[c] : nullptr;
}

Json NumbersOf(LossKind kind, const std::vector<double>& losses) {
  Json shown = Json::array();
  for (const double loss : losses) shown.push_back(Shown(kind, loss));
  return shown;
}

Json LossJson(LossKind kind, const Outcome& outcome) {
  Json errors = Json::array();
  for (size_t run = 0; run < outcome.loss.size(); ++run) {
    errors.push_back(ShownError(kind, outcome.loss[run], outcome.standard_error[run]));
  }
  return {{"worst", Shown(kind, outcome.worst_loss())},
          {"median", Shown(kind, outcome.median_loss())},
          {"mean", Shown(kind, outcome.mean_loss())},
          {"runs", NumbersOf(kind, outcome.loss)},
          {"standard_errors", errors}};
}

Json PointJson(const Advice& advice, const Point& point) {
  const Outcome& outcome = point.outcome;
  return {{"plan", PlanText(advice, point)},
          {"candidate", point.uniform ? Json(*point.uniform) : Json(nullptr)},
          {"ratio", outcome.ratio()},
          {"mean_ratio", outcome.mean_ratio()},
          {"worst_ratio", 1 / outcome.worst_share()},
          {"removed_fraction", 1 - outcome.mean_share()},
          {"loss", LossJson(advice.measured().kind, outcome)},
          {"parts_without_first_token", UnitsWithoutFirst(advice.measured(), point.choice)}};
}

Json PointsJson(const Advice& advice, const std::vector<Point>& points) {
  Json json = Json::array();
  for (const Point& point : points) json.push_back(PointJson(advice, point));
  return json;
}

Json BestJson(const Advice& advice) {
  if (!advice.found.best) return nullptr;
  const Point& best = *advice.found.best;
  Json json = PointJson(advice, best);
  json["expected_loss"] = Shown(advice.measured().kind, advice.expected_loss());
  json["measured_again"] = Json::array();
  for (const Outcome& outcome : advice.measured_again) {
    json["measured_again"].push_back(Shown(advice.measured().kind, outcome.loss.front()));
  }
  json["choices"] = ChoicesJson(advice, best.choice);
  return json;
}

Json RunsJson(const Runs& runs, const Advice& advice) {
  Json json = Json::array();
  for (size_t r = 0; r < runs.size(); ++r) {
    const RunOf& run = *runs[r];
    json.push_back({{"name", run.name()},
                    {"prompt_tokens", run.prompt()},
                    {"tokens", run.end()},
                    {"full_bytes", run.bytes_per_token() * run.end()},
                    {"rows_measured", advice.effects.rows[r].positions.size()},
                    {"rows", advice.effects.rows[r].population},
                    {"undefined_rows", advice.effects.undefined_rows[r]},
                    {"missing_layers", run.missing_layers()}});
  }
  return json;
}

Json CheckJson(const Advice& advice) {
  const LossKind kind = advice.measured().kind;
  Json folds = Json::array();
  for (const Fold& fold : advice.check.folds) {
    Json json = {{"left_out", fold.left_out}, {"found", fold.found}};
    const auto if_found = [&](double value) { return fold.found ? Json(value) : Json(nullptr); };
    json["promised_loss"] = if_found(Shown(kind, fold.promised));
    json["loss"] = if_found(Shown(kind, fold.left_out_loss));
    json["ratio"] = if_found(1 / fold.left_out_share);
    json["holds"] = fold.holds;
    folds.push_back(json);
  }
  const double optimism = advice.check.optimism();
  return {{"left_out", advice.check.halves ? "half_of_the_rows" : "run"},
          {"optimism", Shown(kind, optimism) / Shown(kind, 1)},
          {"folds", folds}};
}

Json CandidatesJson(const Advice& advice) {
  Json json = Json::array();
  for (const Candidate& candidate : advice.candidates) {
    json.push_back({{"policy", candidate.policy},
                    {"budget", candidate.budget.Text()},
                    {"parameters", candidate.parameters}});
  }
  return json;
}

Json ParamsJson(const AdviceRequest& request, const Advice& advice) {
  const LossKind kind = advice.measured().kind;
  Json budgets = Json::array();
  for (const eviction::KeepBudget& budget : request.candidates.budgets) {
    budgets.push_back(budget.Text());
  }
  return {
      {"max_loss", request.limits.loss ? Json(Shown(kind, *request.limits.loss)) : Json(nullptr)},
      {"min_ratio", 1 / request.limits.share},
      {"policies", request.candidates.policies},
      {"budgets", budgets},
      {"sinks", request.candidates.sinks},
      {"recent", request.candidates.recent},
      {"windows", request.candidates.windows},
      {"granularity", request.measure.units == eviction::Granularity::kLayer ? "layer" : "kv-head"},
      {"rows", request.measure.rows},
      {"seed", request.measure.seed}};
}

// "0-3, 7" of an ascending list.
std::string RangesText(const std::set<uint32_t>& numbers) {
  std::vector<std::string> texts;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const uint32_t first = *at;
    uint32_t last = first;
    for (++at; at != numbers.end() && *at == last + 1; ++at) last = *at;
    texts.push_back(first == last ? std::to_string(first) : fmt::format("{}-{}", first, last));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

std::string LossName(LossKind kind) {
  switch (kind) {
    case LossKind::kFisher:
      return "predicted KL of the next token, from gradients";
    case LossKind::kSensitivity:
      return "predicted KL of the next token, from layer sensitivities";
    case LossKind::kOutput:
      return "relative error of attention outputs (Frobenius)";
  }
  return "?";
}

std::string LossText(LossKind kind, double loss) {
  if (kind == LossKind::kOutput) return fmt::format("{:.2f}%", 100 * Shown(kind, loss));
  return fmt::format("{:.3g} nats", Shown(kind, loss));
}

std::string LossTextWithError(LossKind kind, double loss, double standard_error) {
  const double error = ShownError(kind, loss, standard_error);
  const bool output = kind == LossKind::kOutput;
  std::string text = output ? fmt::format("{:.2f}%", 100 * Shown(kind, loss))
                            : fmt::format("{:.3g}", Shown(kind, loss));
  if (error > 0)
    text += output ? fmt::format(" +-{:.2f}%", 100 * error) : fmt::format(" +-{:.2g}", error);
  if (output) return text;
  const eviction::Calibration& of = CalibrationOf(kind);
  return text + fmt::format(" nats [{:.2g}, {:.2g}]", loss / of.p90, loss / of.p10);
}

std::vector<Part> PartsOf(const Advice& advice, const Choice& choice) {
  struct Where {
    uint32_t units = 0;
    std::map<uint32_t, uint32_t> heads;  // [layer]
  };
  std::map<uint32_t, Where> of;  // [candidate]
  std::map<uint32_t, uint32_t> heads;
  for (size_t u = 0; u < choice.size(); ++u) {
    const Unit& unit = advice.measured().units[u];
    Where& where = of[unit.options[choice[u]].candidate];
    ++where.units;
    ++where.heads[unit.layer];
    ++heads[unit.layer];
  }
  std::vector<Part> parts;
  for (const auto& [candidate, where] : of) {
    std::set<uint32_t> whole, some;
    for (const auto& [layer, count] : where.heads) {
      (count == heads[layer] ? whole : some).insert(layer);
    }
    Part part{"everything", where.units, {}};
    if (candidate < advice.candidates.size()) part.candidate = advice.candidates[candidate].Text();
    if (!whole.empty()) part.where = "layers " + RangesText(whole);
    if (!some.empty()) {
      part.where += fmt::format("{}some heads of {}", whole.empty() ? "" : "; ", RangesText(some));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string PlanText(const Advice& advice, const Point& point) {
  if (point.uniform) return advice.candidates[*point.uniform].Text();
  const std::vector<Part> parts = PartsOf(advice, point.choice);
  if (parts.size() == 1) return parts.front().candidate;
  return fmt::format("mixed, {} choices", parts.size());
}

std::string CheckText(const Advice& advice) {
  const CrossChecked& check = advice.check;
  const LossKind kind = advice.measured().kind;
  double least = INFINITY, most = 0;
  size_t found = 0, holds = 0;
  for (const Fold& fold : check.folds) {
    if (!fold.found) continue;
    ++found;
    holds += fold.holds;
    least = std::min(least, fold.left_out_loss);
    most = std::max(most, fold.left_out_loss);
  }
  const std::string_view rest = check.halves ? "the other half of the rows" : "the other prompts";
  if (found == 0) return fmt::format("chosen on {} alone, no plan is within the limits", rest);
  return fmt::format(
      "chosen on {} alone, plans cost {} to {} where they were not chosen, within "
      "the limits in {} of {}",
      rest, LossText(kind, least), LossText(kind, most), holds, found);
}

Json ChoicesJson(const Advice& advice, const Choice& choice) {
  Json json = Json::array();
  std::map<uint32_t, uint32_t> heads;
  for (const Unit& unit : advice.measured().units) ++heads[unit.layer];
  for (size_t u = 0; u < choice.size(); ++u) {
    const Unit& unit = advice.measured().units[u];
    const Candidate* candidate = CandidateOf(advice, choice, u);
    json.push_back({{"layer", unit.layer},
                    {"kv_head", heads[unit.layer] == 1 ? Json(nullptr) : Json(unit.kv_head)},
                    {"policy", candidate == nullptr ? "full" : candidate->policy},
                    {"budget", candidate == nullptr ? "1" : candidate->budget.Text()},
                    {"parameters", candidate == nullptr ? "" : candidate->parameters}});
  }
  return json;
}

Json AdviceJson(const Runs& runs, const AdviceRequest& request, const Advice& advice) {
  const LossKind kind = advice.measured().kind;
  Json json = Json::object();
  json["runs"] = RunsJson(runs, advice);
  json["params"] = ParamsJson(request, advice);
  json["loss"] = {{"method", Name(kind)},
                  {"unit", kind == LossKind::kOutput ? "relative_error" : "nats"},
                  {"calibration", nullptr}};
  if (kind != LossKind::kOutput) {
    const eviction::Calibration& of = CalibrationOf(kind);
    json["loss"]["calibration"] = {{"p10", of.p10}, {"median", of.median}, {"p90", of.p90}};
  }
  json["candidates"] = CandidatesJson(advice);
  json["best"] = BestJson(advice);
  json["best_uniform"] =
      advice.found.best_uniform ? PointJson(advice, *advice.found.best_uniform) : Json(nullptr);
  json["frontier"] = PointsJson(advice, advice.found.frontier);
  json["uniform"] = PointsJson(advice, advice.found.uniform);
  json["check"] = CheckJson(advice);
  json["at_context"] = nullptr;
  if (advice.at_context) {
    const AtContext& at = *advice.at_context;
    json["at_context"] = {{"tokens", at.tokens},
                          {"full_bytes", static_cast<uint64_t>(std::llround(at.full_bytes))},
                          {"kept_bytes", static_cast<uint64_t>(std::llround(at.kept_bytes))},
                          {"ratio", at.full_bytes / at.kept_bytes}};
  }
  json["notes"] = advice.notes;
  json["warnings"] = advice.warnings;
  return json;
}

}  // namespace kv::advise
