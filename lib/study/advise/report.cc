// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The document, tables and sentences of kvtool.advise, except for the HTML page (page.cc) and
// savings (savings_report.cc).
#include "lib/study/advise/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/core/base/number.h"

namespace kv::advise {
namespace {

const Candidate* FindCandidate(const Advice& advice, const Choice& choice, size_t unit) {
  const uint32_t c = advice.measured().units[unit].options[choice[unit]].candidate;
  return c < advice.candidates.size() ? &advice.candidates[c] : nullptr;
}

std::vector<double> Losses(LossKind kind, const std::vector<double>& losses) {
  std::vector<double> shown;
  for (const double loss : losses) shown.push_back(Shown(kind, loss));
  return shown;
}

std::vector<double> FirstLosses(LossKind kind, const std::vector<Outcome>& outcomes) {
  std::vector<double> shown;
  for (const Outcome& outcome : outcomes) shown.push_back(Shown(kind, outcome.loss.front()));
  return shown;
}

struct LossOf {
  LossKind kind;
  const Outcome& outcome;

  std::vector<std::optional<double>> Errors() const {
    std::vector<std::optional<double>> errors;
    for (size_t run = 0; run < outcome.loss.size(); ++run)
      errors.push_back(ShownError(kind, outcome.loss[run], outcome.standard_error[run]));
    return errors;
  }
};

auto LossBy(double (Outcome::*member)() const) {
  return [member](const LossOf& of) { return Shown(of.kind, (of.outcome.*member)()); };
}

const Fields<LossOf>& LossFields() {
  static const Fields<LossOf> fields = {
      {"worst", "Largest loss of a run", LossBy(&Outcome::worst_loss), AtLeast(0)},
      {"median", "Median loss of the runs", LossBy(&Outcome::median_loss), AtLeast(0)},
      {"mean", "Mean loss of the runs", LossBy(&Outcome::mean_loss), AtLeast(0)},
      {"runs",
       "Loss of each run, in the order of runs",
       [](const LossOf& of) { return Losses(of.kind, of.outcome.loss); },
       {.least = 0, .items = 1}},
      {"standard_errors", "null where a sample of one row says nothing", &LossOf::Errors,
       Items(1)}};
  return fields;
}

struct PointOf {
  const Advice& advice;
  const Point& point;
};

std::vector<PointOf> ListPoints(const Advice& advice, const std::vector<Point>& points) {
  std::vector<PointOf> of;
  for (const Point& point : points) of.push_back({advice, point});
  return of;
}

const Fields<PointOf>& PointFields() {
  static const Fields<PointOf> fields = {
      {"plan", "The plan in words: a candidate's name, or the candidate of most layers",
       [](const PointOf& of) { return PlanText(of.advice, of.point); }},
      {"candidate", "Index into candidates, if all parts follow the same candidate",
       [](const PointOf& of) { return of.point.uniform; }},
      {"ratio", "Whole cache / bytes kept at the end: 1 / the mean kept share of the runs",
       [](const PointOf& of) { return of.point.outcome.ratio(); }, AtLeast(kLeastRatio)},
      {"mean_ratio",
       "Whole cache / bytes held over all decode steps: 1 / the mean held share of the runs",
       [](const PointOf& of) { return of.point.outcome.mean_ratio(); }, AtLeast(kLeastRatio)},
      {"worst_ratio", "Whole cache / bytes kept at the end, in the run that keeps most",
       [](const PointOf& of) { return 1 / of.point.outcome.worst_share(); }, AtLeast(kLeastRatio)},
      {"removed_fraction",
       "Share of the cache's bytes that is evicted by the end, mean of the runs",
       [](const PointOf& of) { return 1 - of.point.outcome.mean_share(); },
       {.least = -1e-09, .most = 1}},
      {"loss", "What the plan costs, in the unit that loss.unit names",
       [](const PointOf& of) {
         return LossOf{of.advice.measured().kind, of.point.outcome};
       },
       LossFields()},
      {"parts_without_first_token",
       "Number of layers (or kv heads) that lose the first token in some run",
       [](const PointOf& of) { return UnitsWithoutFirst(of.advice.measured(), of.point.choice); }},
      {"corrected_loss",
       "Largest loss of a run, times the factor that --confirm found; absent without it",
       [](const PointOf& of) {
         const std::optional<double>& scale = of.advice.scale;
         const double loss = Shown(of.advice.measured().kind, of.point.outcome.worst_loss());
         return scale ? std::optional(loss * *scale) : std::nullopt;
       },
       AtLeast(0, Absent())}};
  return fields;
}

const Fields<PointOf>& BestFields() {
  static const Fields<PointOf> fields = {
      Fields<PointOf>::Inline(PointFields()),
      {"expected_loss",
       "Loss of the worst prompt times the optimism that the check found: max_loss limits it",
       [](const PointOf& of) {
         return Shown(of.advice.measured().kind, of.advice.expected_loss());
       },
       AtLeast(0)},
      {"measured_again",
       "Loss in each run, measured from the plan's tokens alone",
       [](const PointOf& of) {
         return FirstLosses(of.advice.measured().kind, of.advice.measured_again);
       },
       {.least = 0, .items = 1}},
      {"choices", "Candidate that each part of the model follows under this plan",
       [](const PointOf& of) { return ListChoices(of.advice, of.point.choice); },
       UnitChoiceFields(), Items(1)}};
  return fields;
}

std::optional<PointOf> IfFound(const Advice& advice, const std::optional<Point>& point) {
  return point ? std::optional(PointOf{advice, *point}) : std::nullopt;
}

struct MeasuredRun {
  const AdviseRun& run;
  const Effects& effects;
  size_t index;
};

const Fields<MeasuredRun>& MeasuredRunFields() {
  static const Fields<MeasuredRun> fields = {
      {"name", "Name of the run as it was given",
       [](const MeasuredRun& of) { return of.run.name(); }},
      {"prompt_tokens", "Number of tokens of the prompt: where prefill ends",
       [](const MeasuredRun& of) { return of.run.prompt(); }},
      {"tokens", "Number of tokens at the end of the run, prompt included",
       [](const MeasuredRun& of) { return of.run.end(); }},
      {"full_bytes", "Bytes of K and V of the whole cache at the end",
       [](const MeasuredRun& of) { return of.run.bytes_per_token() * of.run.end(); }},
      {"rows_measured", "Number of decode rows (queries) that were measured",
       [](const MeasuredRun& of) { return of.effects.rows[of.index].positions.size(); }},
      {"rows", "Number of decode rows that the measured rows were drawn from",
       [](const MeasuredRun& of) { return of.effects.rows[of.index].population; }},
      {"undefined_rows",
       "Measured rows that are undefined in some layer, by NaN or infinite values; they are left "
       "out",
       [](const MeasuredRun& of) { return of.effects.undefined_rows[of.index]; }},
      {"missing_layers",
       "Numbers of the layers without attention in the trace; these layers keep everything",
       [](const MeasuredRun& of) { return of.run.missing_layers(); }}};
  return fields;
}

std::vector<MeasuredRun> MeasuredRuns(const Report& of) {
  std::vector<MeasuredRun> runs;
  for (size_t r = 0; r < of.runs.size(); ++r) runs.push_back({*of.runs[r], of.advice.effects, r});
  return runs;
}

LossKind GetLossKind(const Report& of) { return of.advice.measured().kind; }

const Fields<Report>& ParamsFields() {
  static const Fields<Report> fields = {
      {"max_loss",
       "Limit on the loss of the worst run, in the unit that loss.unit names; null: no limit",
       [](const Report& of) {
         const std::optional<double>& loss = of.request.limits.loss;
         return loss ? std::optional(Shown(GetLossKind(of), *loss)) : std::nullopt;
       }},
      {"min_ratio",
       "Least ratio, whole cache / bytes kept, that the worst run must reach; 1: no limit",
       [](const Report& of) { return 1 / of.request.limits.share; }, AtLeast(kLeastRatio)},
      {"policies", "Names of the policies that were tried",
       [](const Report& of) { return of.request.candidates.policies; }},
      {"budgets",
       "The budgets that were tried: shares of the tokens, or numbers of tokens as \"512t\"",
       [](const Report& of) {
         std::vector<std::string> texts;
         for (const eviction::KeepBudget& budget : of.request.candidates.budgets)
           texts.push_back(budget.Text());
         return texts;
       }},
      {"sinks", "Numbers of first tokens that policy streaming keeps",
       [](const Report& of) { return of.request.candidates.sinks; }},
      {"recent",
       "Shares of a budget that go to the most recent tokens, for the policies block and h2o",
       [](const Report& of) { return of.request.candidates.recent; }},
      {"windows", "Observation windows of snapkv and pyramid: numbers of last query rows",
       [](const Report& of) { return of.request.candidates.windows; }},
      {"granularity", "Unit that gets its own candidate: each layer, or each kv head",
       [](const Report& of) {
         return of.request.measure.units == eviction::Granularity::kLayer ? "layer" : "kv-head";
       },
       OneOf("layer", "kv-head")},
      {"rows", "Largest number of decode rows to measure in a run; 0: all",
       [](const Report& of) { return of.request.measure.rows; }},
      {"seed", "Seed of the sample of rows and of policy random",
       [](const Report& of) { return of.request.measure.seed; }}};
  return fields;
}

const Fields<Report>& MethodFields() {
  static const Fields<Report> fields = {
      {"method",
       "Source of the losses: gradients, the sensitivity of layers, or the error of attention "
       "outputs",
       [](const Report& of) { return Name(GetLossKind(of)); },
       OneOf("gradients", "sensitivity", "output-error")},
      {"basis",
       "States that the gradients were taken at: recorded, or with evicted keys; null without "
       "gradients",
       [](const Report& of) {
         const LossKind kind = GetLossKind(of);
         return IsFisher(kind) ? std::optional(Name(FindBasis(kind))) : std::nullopt;
       },
       OneOf("recorded", "evicted", "both", nullptr)},
      {"unit",
       "Unit of all losses: nats of KL of the next token, or relative error of attention outputs "
       "(Frobenius)",
       [](const Report& of) {
         return GetLossKind(of) == LossKind::kOutput ? "relative_error" : "nats";
       },
       OneOf("nats", "relative_error")},
      {"calibration", "Predicted over real KL in a study; losses are divided by its median",
       [](const Report& of) {
         return GetLossKind(of) == LossKind::kOutput ? nullptr : &FindCalibration(GetLossKind(of));
       },
       eviction::CalibrationFields()}};
  return fields;
}

const Fields<Candidate>& CandidateFields() {
  static const Fields<Candidate> fields = {
      {"policy", "Name of the policy", &Candidate::policy},
      {"budget", "What may be kept: a share of the tokens, or a number of tokens as \"512t\"",
       [](const Candidate& of) { return of.budget.Text(); }},
      {"parameters",
       "Parameters that distinguish the candidate from others of its policy, such as \"sinks 4\"; "
       "empty: none",
       &Candidate::parameters}};
  return fields;
}

struct FoldOf {
  LossKind kind;
  const Fold& fold;

  std::optional<double> IfFound(double value) const {
    return fold.found ? std::optional(value) : std::nullopt;
  }
};

const Fields<FoldOf>& FoldFields() {
  static const Fields<FoldOf> fields = {
      {"left_out", "Index of the run (or half) that was left out, from 0",
       [](const FoldOf& of) { return of.fold.left_out; }},
      {"found", "Whether the search found a plan within the limits",
       [](const FoldOf& of) { return of.fold.found; }},
      {"promised_loss", "Worst loss of the plan on the data it was chosen on; null: no plan",
       [](const FoldOf& of) { return of.IfFound(Shown(of.kind, of.fold.promised)); }},
      {"loss", "Loss of the plan on the data left out; null: no plan",
       [](const FoldOf& of) { return of.IfFound(Shown(of.kind, of.fold.left_out_loss)); }},
      {"ratio", "Ratio of the plan on the data left out, whole cache / kept; null: no plan",
       [](const FoldOf& of) { return of.IfFound(1 / of.fold.left_out_share); }},
      {"holds", "Whether the plan is within the limits on the data left out, too",
       [](const FoldOf& of) { return of.fold.holds; }}};
  return fields;
}

const Fields<Report>& CheckFields() {
  static const Fields<Report> fields = {
      {"left_out",
       "Data that each fold leaves out of the search: one run, or half of the rows of a single run",
       [](const Report& of) { return of.advice.check.halves ? "half_of_the_rows" : "run"; },
       OneOf("run", "half_of_the_rows")},
      {"optimism", "Loss of plans on the data left out / loss that was predicted for them",
       [](const Report& of) {
         return Shown(GetLossKind(of), of.advice.check.optimism()) / Shown(GetLossKind(of), 1);
       },
       AtLeast(1)},
      {"folds", "One search for each run (or half) that is left out",
       [](const Report& of) {
         std::vector<FoldOf> folds;
         for (const Fold& fold : of.advice.check.folds) folds.push_back({GetLossKind(of), fold});
         return folds;
       },
       FoldFields(), Items(2)}};
  return fields;
}

const Fields<AtContext>& AtContextFields() {
  static const Fields<AtContext> fields = {
      {"tokens", "The model's full context, in tokens", &AtContext::tokens},
      {"full_bytes", "Bytes of K and V of a whole cache of that length",
       [](const AtContext& at) { return static_cast<uint64_t>(std::llround(at.full_bytes)); }},
      {"kept_bytes", "Bytes of K and V that the best plan would keep of a cache of that length",
       [](const AtContext& at) { return static_cast<uint64_t>(std::llround(at.kept_bytes)); }},
      {"ratio", "full_bytes / kept_bytes",
       [](const AtContext& at) { return at.full_bytes / at.kept_bytes; }, AtLeast(kLeastRatio)}};
  return fields;
}

const Report& Whole(const Report& of) { return of; }

}  // namespace

std::string LossName(LossKind kind) {
  switch (kind) {
    case LossKind::kFisher:
      return "expected KL of the next token, from gradients";
    case LossKind::kFisherEvicted:
      return "expected KL of the next token, from gradients at evicted states";
    case LossKind::kFisherBoth:
      return "expected KL of the next token, from gradients at recorded and evicted states";
    case LossKind::kSensitivity:
      return "expected KL of the next token, from layer sensitivities";
    case LossKind::kOutput:
      return "output error, |O - O'| / |O| over all rows and layers";
  }
  return "?";
}

std::string LossLabel(LossKind kind) {
  return kind == LossKind::kOutput ? "output error, mean of prompts"
                                   : "expected KL, nats, mean of prompts";
}

std::string LossRemark(LossKind kind) {
  return kind == LossKind::kOutput
             ? std::string()
             : "Losses are predicted, and " + CalibrationText(FindCalibration(kind));
}

std::string LossText(LossKind kind, double loss) {
  const double shown = Shown(kind, loss);
  return kind == LossKind::kOutput ? format::Percent(shown) : format::Nats(shown) + " nats";
}

std::string LossTextWithError(LossKind kind, double loss, double standard_error) {
  const double error = ShownError(kind, loss, standard_error);
  if (kind == LossKind::kOutput) {
    return LossText(kind, loss) + (error > 0 ? " +-" + format::Percent(error) : "");
  }
  const eviction::Calibration& of = FindCalibration(kind);
  return format::Nats(Shown(kind, loss)) + (error > 0 ? fmt::format(" +-{:.2g}", error) : "") +
         fmt::format(" nats [{:.2g}, {:.2g}]", loss / of.p90, loss / of.p10);
}

TextTable PartsTable(const Advice& advice, const Choice& choice) {
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
  TextTable parts = {{"what stays", "parts", "where"}, {}};
  for (const auto& [candidate, where] : of) {
    std::vector<uint32_t> whole, some;
    for (const auto& [layer, count] : where.heads) {
      (count == heads[layer] ? whole : some).push_back(layer);
    }
    std::vector<std::string> layers;
    if (!whole.empty()) {
      layers.push_back(
          fmt::format("layer{} {}", PluralEnding(whole.size()), RangesText(whole, ", ")));
    }
    if (!some.empty()) layers.push_back("some heads of " + RangesText(some, ", "));
    parts.rows.push_back(
        {candidate < advice.candidates.size() ? advice.candidates[candidate].Text() : "everything",
         std::to_string(where.units), fmt::format("{}", fmt::join(layers, "; "))});
  }
  return parts;
}

namespace {

// Returns some of the points, evenly spread, with the best plan in its place among them.
std::vector<const Point*> SomeWithBest(const Advice& advice, const std::vector<Point>& points,
                                       size_t most) {
  const std::optional<Point>& best = advice.found.best;
  const auto is_best = [&](const Point& point) { return best && point.choice == best->choice; };
  std::vector<const Point*> some;
  const size_t count = std::min(points.size(), most);
  for (size_t i = 0; i < count; ++i) {
    const Point& point = points[count == points.size() ? i : i * (points.size() - 1) / (count - 1)];
    if (!is_best(point)) some.push_back(&point);
  }
  const bool adds_best = best && (most < points.size() || std::ranges::any_of(points, is_best));
  if (!adds_best) return some;
  const auto place = std::ranges::find_if(some, [&](const Point* point) {
    return point->outcome.mean_share() < best->outcome.mean_share();
  });
  some.insert(place, &*best);
  return some;
}

}  // namespace

TextTable PlansTable(const Advice& advice, const std::vector<Point>& points, size_t most) {
  const LossKind kind = advice.measured().kind;
  TextTable table = {{"plan", "ratio", "mean ratio", "measured loss", "median prompt",
                      "expected loss", "no first token"},
                     {}};
  if (advice.scale) table.head.emplace_back("corrected loss");
  for (const Point* point : SomeWithBest(advice, points, most)) {
    const Outcome& outcome = point->outcome;
    const bool is_best = advice.found.best && point == &*advice.found.best;
    table.rows.push_back(
        {(is_best ? "(eviction) " : "") + PlanText(advice, *point), format::Factor(outcome.ratio()),
         format::Factor(outcome.mean_ratio()), LossText(kind, outcome.worst_loss()),
         LossText(kind, outcome.median_loss()), LossText(kind, ExpectedLoss(advice, *point)),
         fmt::format("{} of {}", UnitsWithoutFirst(advice.measured(), point->choice),
                     point->choice.size())});
    if (advice.scale)
      table.rows.back().push_back(LossText(kind, outcome.worst_loss() * *advice.scale));
  }
  if (advice.measured().runs.size() > 1) return table;
  table.head.erase(table.head.begin() + 4);  // the median of a single prompt is its loss
  for (std::vector<std::string>& row : table.rows) row.erase(row.begin() + 4);
  return table;
}

double ExpectedLoss(const Advice& advice, const Point& point) {
  return point.outcome.worst_loss() * (point.uniform ? 1 : advice.check.optimism());
}

std::string PlanText(const Advice& advice, const Point& point) {
  if (point.uniform) return advice.candidates[*point.uniform].Text();
  const TextTable table = PartsTable(advice, point.choice);
  if (table.rows.size() == 1) return table.rows.front().front();
  std::vector<PartOfMixture> parts;
  for (size_t u = 0; u < point.choice.size(); ++u) {
    const Candidate* candidate = FindCandidate(advice, point.choice, u);
    parts.push_back({advice.measured().units[u].layer,
                     candidate == nullptr ? std::string() : candidate->ShortText()});
  }
  return MixtureText(parts);
}

std::string MixtureText(const std::vector<PartOfMixture>& parts) {
  using Layers = std::vector<uint32_t>;
  std::map<std::string, Layers> by_text;
  for (const PartOfMixture& part : parts) {
    Layers& layers = by_text[part.text];
    if (layers.empty() || layers.back() != part.layer) layers.push_back(part.layer);
  }
  std::vector<std::pair<std::string, Layers>> groups(by_text.begin(), by_text.end());
  std::ranges::stable_sort(groups, [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() > b.second.size()
                                              : a.second.front() < b.second.front();
  });
  constexpr size_t kMostGroups = 2, kMostRanges = 8;
  std::string text = "mixed:";
  for (size_t i = 0; i < std::min(groups.size(), kMostGroups); ++i) {
    const auto& [what, layers] = groups[i];
    const std::string ranges = RangesText(layers, "+");
    text += fmt::format(
        "{} {} {}", i == 0 ? "" : ",",
        ranges.size() <= kMostRanges ? "L" + ranges : fmt::format("{} layers", layers.size()),
        what.empty() ? "unchanged" : what);
  }
  if (groups.size() > kMostGroups) text += fmt::format(", {} more", groups.size() - kMostGroups);
  return text;
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
  const std::string_view rest = check.halves ? "without half of the rows" : "without a prompt";
  if (found == 0) return fmt::format("chosen {}, no plan is within the limits", rest);
  return fmt::format(
      "plans chosen {} lost {} to {} on what was left out; {} of {} within the limits", rest,
      LossText(kind, least), LossText(kind, most), holds, found);
}

const Fields<UnitChoice>& UnitChoiceFields() {
  using U = UnitChoice;
  static const Fields<U> fields = {
      {"layer", "Number of the layer", &U::layer},
      {"kv_head", "Number of the kv head in its layer; null: the whole layer", &U::kv_head},
      {"policy", "Name of the policy; full: everything is kept",
       [](const U& of) { return of.candidate == nullptr ? "full" : of.candidate->policy; }},
      {"budget", "What may be kept: a share of the tokens, or a number of tokens as \"512t\"",
       [](const U& of) { return of.candidate == nullptr ? "1" : of.candidate->budget.Text(); }},
      {"parameters", "Parameters that distinguish candidates of a policy; empty: none",
       [](const U& of) { return of.candidate == nullptr ? "" : of.candidate->parameters; }}};
  return fields;
}

std::vector<UnitChoice> ListChoices(const Advice& advice, const Choice& choice) {
  std::vector<UnitChoice> choices;
  std::map<uint32_t, uint32_t> heads;
  for (const Unit& unit : advice.measured().units) ++heads[unit.layer];
  for (size_t u = 0; u < choice.size(); ++u) {
    const Unit& unit = advice.measured().units[u];
    UnitChoice of{unit.layer, std::nullopt, FindCandidate(advice, choice, u)};
    if (heads[unit.layer] != 1) of.kv_head = unit.kv_head;
    choices.push_back(of);
  }
  return choices;
}

Value ChoicesValue(const std::vector<UnitChoice>& choices) {
  Value::List list;
  for (const UnitChoice& choice : choices) list.push_back(UnitChoiceFields().Object(choice));
  return list;
}

const Fields<Report>& ReportFields() {
  static const Fields<Report> fields = {
      {"runs", "The prompts that were measured, one for each snapshot with its trace", MeasuredRuns,
       MeasuredRunFields(), Items(1)},
      {"params", "Parameters of the run", Whole, ParamsFields()},
      {"loss", "How losses were computed", Whole, MethodFields()},
      {"candidates",
       "Every policy with its budget and parameters that a part of the model could follow",
       [](const Report& of) { return std::span<const Candidate>(of.advice.candidates); },
       CandidateFields(), Items(1)},
      {"best",
       "The smallest plan within the limits, or without a limit on the loss that of least loss; "
       "null: no plan is within the limits",
       [](const Report& of) { return IfFound(of.advice, of.advice.found.best); }, BestFields()},
      {"best_uniform",
       "The best plan in which every part follows the same candidate; null: no such plan is within "
       "the limits",
       [](const Report& of) { return IfFound(of.advice, of.advice.found.best_uniform); },
       PointFields()},
      {"frontier",
       "The plans that no other plan beats in both bytes and loss, largest first",
       [](const Report& of) { return ListPoints(of.advice, of.advice.found.frontier); },
       PointFields(),
       {.rows = true, .unless = "savings"}},
      {"uniform", "One plan for each candidate, which every part follows; largest first",
       [](const Report& of) { return ListPoints(of.advice, of.advice.found.uniform); },
       PointFields()},
      {"check", "Plans chosen on some data, measured on the rest", Whole, CheckFields()},
      {"at_context",
       "Bytes of the best plan at the model's full context; null: the context is not known, or "
       "there is no plan",
       [](const Report& of) { return of.advice.at_context; }, AtContextFields()},
      {"notes", "Notes on the advice", [](const Report& of) { return of.advice.notes; }},
      {"warnings", "Warnings on the advice", [](const Report& of) { return of.advice.warnings; }}};
  return fields;
}

}  // namespace kv::advise
