// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Searches mixtures of options for the best plan within the limits (Walker), and cross-checks what
// it found: folds that leave one run out show how much a plan loses where it was not chosen.
#include "lib/study/advise/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "lib/core/base/error.h"

namespace kv::advise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Two shares that differ by less are equal: they are sums of the same numbers in another order.
constexpr double kSameShare = 1e-12;
// A loss must fall by more than this share of itself to count as lower.
constexpr double kSameLoss = 1e-9;
bool IsLess(double loss, double than) { return loss < than - kSameLoss * std::abs(than); }
// Largest number of points returned; a walk visits hundreds.
constexpr size_t kMostPoints = 48;
// Exchange ends after kMostFailures options that nothing could pay for, or kMostExchanges attempts.
constexpr int kMostFailures = 12, kMostExchanges = 1000;
// Largest number of rounds of Exchange and Descend at the limits.
constexpr int kMostRounds = 8;
// A walk ends when the loss is this many times its limit.
constexpr double kFarBeyond = 25;

// A mixture that a walk visited.
struct Step {
  Choice choice;
  double share = 0, loss = 0, worst_loss = 0;
};
Step ToStep(const Mixture& mixture) {
  return {mixture.choice(), mixture.share(), mixture.loss(), mixture.worst_loss()};
}

struct Move {
  size_t unit = 0;
  uint32_t option = 0;
  double price = kInfinity;  // loss per share of the cache's bytes; lowest is best
};

double ComputeSavingPrice(const Mixture::Change& change) {
  return change.share < -kSameShare ? change.loss / -change.share : kInfinity;
}

// Returns the price of taking an option that lowers the loss. Negative: a lower price removes more
// loss per byte. Options that cost no bytes come first.
double ComputeSpendingPrice(const Mixture::Change& change) {
  // Factor of the loss that a change without bytes removes, so that its price is the lowest.
  constexpr double kFree = 1e100;
  if (change.loss >= 0) return kInfinity;
  return change.share <= kSameShare ? change.loss * kFree : change.loss / change.share;
}

// Walks among the mixtures of some options. Ties go to the lower unit and option, so the result is
// the same for any number of threads.
class Walker {
 public:
  Walker(const Measured& measured, const Limits& limits, ThreadPool& pool)
      : measured_(measured), limits_(limits), pool_(pool), options_(measured.units.size()) {
    const Mixture whole(measured, Choice(measured.units.size(), 0));
    pool.ParallelFor(options_.size(), [&](uint64_t u) { options_[u] = Unbeaten(whole, u); });
  }

  // Records every mixture from this one down to the smallest, or until the loss is far beyond its
  // limit.
  void Descend(Mixture mixture, std::vector<Step>& steps) const {
    for (;;) {
      const Move move = Best(mixture, ComputeSavingPrice);
      if (move.price == kInfinity) return;
      mixture.Take(move.unit, move.option);
      steps.push_back(ToStep(mixture));
      const bool far = limits_.loss && mixture.worst_loss() > kFarBeyond * *limits_.loss;
      if (far && mixture.share() < limits_.share) return;
    }
  }

  // Lowers the loss without more bytes, and then the bytes within the limit of the loss.
  void Refine(Mixture& mixture, std::vector<Step>& steps) const {
    for (int round = 0; round < kMostRounds; ++round) {
      const bool exchanged = Exchange(mixture);
      steps.push_back(ToStep(mixture));
      if (!limits_.loss || !SaveWithinLimit(mixture, steps)) return;
      if (!exchanged) return;
    }
  }

 private:
  // Returns the options of a unit that no other option beats in both bytes and loss.
  std::vector<uint32_t> Unbeaten(const Mixture& whole, size_t unit) const {
    const size_t count = measured_.units[unit].options.size();
    std::vector<Mixture::Change> alone;
    for (uint32_t o = 0; o < count; ++o) alone.push_back(whole.Try(unit, o));
    std::vector<uint32_t> order(count);
    for (uint32_t o = 0; o < count; ++o) order[o] = o;
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      if (std::abs(alone[a].share - alone[b].share) > kSameShare) {
        return alone[a].share < alone[b].share;
      }
      return alone[a].loss < alone[b].loss;
    });
    std::vector<uint32_t> unbeaten;
    double least = kInfinity;
    for (const uint32_t o : order) {
      if (alone[o].loss >= least) continue;
      least = alone[o].loss;
      unbeaten.push_back(o);
    }
    std::sort(unbeaten.begin(), unbeaten.end());
    return unbeaten;
  }

  template <typename Price>
  Move Best(const Mixture& mixture, const Price& price,
            const std::vector<std::vector<bool>>* refused = nullptr) const {
    std::vector<Move> of_unit(measured_.units.size());
    pool_.ParallelFor(of_unit.size(), [&](uint64_t unit) {
      for (const uint32_t option : options_[unit]) {
        if (option == mixture.choice()[unit]) continue;
        if (refused != nullptr && (*refused)[unit][option]) continue;
        const double of_move = price(mixture.Try(unit, option));
        if (of_move < of_unit[unit].price) of_unit[unit] = {unit, option, of_move};
      }
    });
    Move best;
    for (const Move& move : of_unit) {
      if (move.price < best.price) best = move;
    }
    return best;
  }

  // Takes options that lower the loss, and pays with options of other units that save bytes.
  bool Exchange(Mixture& mixture) const {
    const double budget = mixture.share() + kSameShare;
    const double before = mixture.loss();
    std::vector<std::vector<bool>> refused;
    for (const Unit& unit : measured_.units) refused.emplace_back(unit.options.size());
    int failures = 0;
    for (int tried = 0; tried < kMostExchanges && failures < kMostFailures; ++tried) {
      const Move up = Best(mixture, ComputeSpendingPrice, &refused);
      if (up.price == kInfinity) break;
      Mixture changed = mixture;
      changed.Take(up.unit, up.option);
      while (changed.share() > budget) {
        const Move down = Best(changed, ComputeSavingPrice);
        if (down.price == kInfinity) break;
        changed.Take(down.unit, down.option);
      }
      if (changed.share() <= budget && IsLess(changed.loss(), mixture.loss())) {
        mixture.Assign(changed);
      } else {
        refused[up.unit][up.option] = true;
        ++failures;
      }
    }
    return IsLess(mixture.loss(), before);
  }

  bool SaveWithinLimit(Mixture& mixture, std::vector<Step>& steps) const {
    bool saved = false;
    for (;;) {
      const Move move = Best(mixture, ComputeSavingPrice);
      if (move.price == kInfinity) return saved;
      Mixture changed = mixture;
      changed.Take(move.unit, move.option);
      if (changed.worst_loss() > *limits_.loss) return saved;
      mixture.Assign(changed);
      steps.push_back(ToStep(mixture));
      saved = true;
    }
  }

  const Measured& measured_;
  const Limits& limits_;
  ThreadPool& pool_;
  std::vector<std::vector<uint32_t>> options_;  // [unit]: options that the walk considers
};

std::optional<Choice> UniformChoice(const Measured& measured, uint32_t candidate) {
  Choice choice;
  for (const Unit& unit : measured.units) {
    const auto found = std::find_if(unit.options.begin() + 1, unit.options.end(),
                                    [&](const Option& o) { return o.candidate == candidate; });
    if (found == unit.options.end()) return std::nullopt;
    choice.push_back(static_cast<uint32_t>(found - unit.options.begin()));
  }
  return choice;
}

bool LargerFirst(const Step& a, const Step& b) {
  if (std::abs(a.share - b.share) > kSameShare) return a.share > b.share;
  return a.loss > b.loss;
}

// Returns the steps that no other step beats, by descending share and so by ascending loss: at most
// kMostPoints, evenly spread, with both ends.
std::vector<Step> BuildFrontier(std::vector<Step> steps) {
  std::stable_sort(steps.begin(), steps.end(), LargerFirst);
  std::vector<Step> frontier;
  double least = kInfinity;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->loss >= least) continue;
    least = step->loss;
    frontier.push_back(std::move(*step));
  }
  // The list ascends from the fewest bytes, so reversing it gives the promised order.
  std::reverse(frontier.begin(), frontier.end());
  if (frontier.size() <= kMostPoints) return frontier;
  std::vector<Step> some;
  for (size_t i = 0; i < kMostPoints; ++i) {
    some.push_back(frontier[i * (frontier.size() - 1) / (kMostPoints - 1)]);
  }
  return some;
}

// Returns true if step a may be within the limits and is better than b.
bool Better(const Step& a, const Step& b, const Limits& limits) {
  const double x = limits.loss ? a.share : a.loss, y = limits.loss ? b.share : b.loss;
  if (x != y) return x < y;
  return limits.loss ? a.loss < b.loss : a.share < b.share;
}

std::optional<Step> BestWithin(const Measured& measured, const std::vector<Step>& steps,
                               const Limits& limits) {
  std::vector<const Step*> order;
  for (const Step& step : steps) {
    if (!limits.loss || step.worst_loss <= *limits.loss) order.push_back(&step);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](const Step* a, const Step* b) { return Better(*a, *b, limits); });
  // The limit applies to the share of the worst run.
  for (const Step* step : order) {
    if (Meets(Mixture::Evaluate(measured, step->choice), limits)) return *step;
  }
  return std::nullopt;
}

Point EvaluatedPoint(const Measured& measured, const Step& step) {
  Point point{step.choice, Mixture::Evaluate(measured, step.choice), std::nullopt};
  const auto candidate = [&](size_t u) {
    return measured.units[u].options[step.choice[u]].candidate;
  };
  for (size_t u = 1; u < step.choice.size(); ++u) {
    if (candidate(u) != candidate(0)) return point;
  }
  if (step.choice.front() != 0) point.uniform = candidate(0);
  return point;
}

// The share of effects that count as independent while a plan is searched for. On a run of 256 rows
// with one sampled token each, plans of 30 layers found at 0, 0.75 and 1 cost 4.2, 2.6 and 1.7
// times as much in the other half of the rows as where they were chosen.
constexpr double kIndependent = 1;
constexpr double kAlike = 1e-9;   // shares that differ by less are equal
constexpr int kMostMargins = 4;   // rounds of tightening the limit
constexpr double kTighter = 0.8;  // the limit shrinks at least by this factor from round to round

AtContext HoldsAt(const Runs& runs, const Advice& advice, const Choice& choice, uint64_t tokens) {
  const AdviseRun& run = *runs.front();
  AtContext at{tokens, static_cast<double>(tokens * run.bytes_per_token()), 0};
  const auto all = static_cast<double>(tokens);
  at.kept_bytes = at.full_bytes;
  size_t unit = 0;
  for (size_t layer = 0; layer < run.layers().size(); ++layer) {
    const size_t first = unit;
    while (unit < choice.size() &&
           advice.measured().units[unit].layer == run.layers()[layer].layer()) {
      ++unit;
    }
    const double heads = static_cast<double>(run.layers()[layer].kv_heads()) /
                         static_cast<double>(std::max<size_t>(1, unit - first));
    for (size_t u = first; u < unit; ++u) {
      const uint32_t c = advice.measured().units[u].options[choice[u]].candidate;
      if (c >= advice.candidates.size()) continue;
      const auto kept = static_cast<double>(advice.candidates[c].budget.At(tokens));
      at.kept_bytes -= (all - kept) * heads * run.head_bytes_per_token(layer);
    }
  }
  return at;
}

void NoteSinks(const Advice& advice, std::vector<std::string>& warnings) {
  if (advice.found.best) {
    const Choice& choice = advice.found.best->choice;
    std::set<std::string> policies;
    for (size_t u = 0; u < choice.size(); ++u) {
      const Option& option = advice.measured().units[u].options[choice[u]];
      if (option.drops_first > 0) policies.insert(advice.candidates[option.candidate].policy);
    }
    if (!policies.empty()) {
      warnings.push_back(fmt::format(
          "the plan drops the first token in {} of {} parts of the model (by {}): where that is an "
          "attention sink, other prompts may lose far more than these",
          UnitsWithoutFirst(advice.measured(), choice), choice.size(), fmt::join(policies, ", ")));
    }
  }
}

void NoteRows(const Runs& runs, const Advice& advice, std::vector<std::string>& warnings) {
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto missing = runs[r]->missing_layers();
    if (!missing.empty()) {
      warnings.push_back(
          fmt::format("{}: the trace has no rows of layers {}: these layers keep everything",
                      runs[r]->name(), fmt::join(missing, ", ")));
    }
    if (advice.effects.undefined_rows[r] > 0) {
      warnings.push_back(fmt::format(
          "{}: {} of {} measured rows are undefined, by NaN or Inf, and left out", runs[r]->name(),
          advice.effects.undefined_rows[r], advice.effects.rows[r].positions.size()));
    }
    if (runs[r]->trace().q_start > 0) {
      warnings.push_back(fmt::format(
          "{}: the trace has no queries of positions 0 to {}: policies that score the prompt by "
          "its own attention (h2o, snapkv, pyramid, block) see only later queries",
          runs[r]->name(), std::min(runs[r]->trace().q_start, runs[r]->prompt()) - 1));
    }
  }
}

void NoteCheck(const Advice& advice, std::vector<std::string>& warnings) {
  size_t held = 0, found = 0;
  for (const Fold& fold : advice.check.folds) {
    found += fold.found;
    held += fold.holds;
  }
  if (held < found) {
    warnings.push_back(
        fmt::format("a plan chosen on the rest alone breaks the limits in {} of {} {}",
                    found - held, found, advice.check.halves ? "halves of the rows" : "prompts"));
  }
  if (advice.check.halves) {
    warnings.push_back(
        "advice from one prompt: it is unknown how well it holds for others; give several runs");
  }
}

void NoteStrides(const Runs& runs, std::vector<std::string>& notes) {
  for (const auto& run : runs) {
    if (run->stride() == 1) continue;
    notes.push_back(fmt::format(
        "{}: with more than {} decode rows policies look and evict at one row in {}, and MNN's own "
        "code, which needs all rows, is not replayed",
        run->name(), AdviseRun::kMostSteps, run->stride()));
  }
}

// Adds a note that names the data on which losses in nats are calibrated, or that says why they are
// not calibrated.
void NoteLosses(const Runs& runs, const Advice& advice, std::vector<std::string>& notes) {
  const LossKind kind = advice.measured().kind;
  if (kind == LossKind::kOutput) {
    if (!runs.front()->trace().gradients) notes.emplace_back(eviction::kNoNats);
    return;
  }
  notes.push_back(fmt::format("losses are predicted, and {}; brackets show this range",
                              CalibrationText(FindCalibration(kind))));
  std::string large = eviction::RemarkOnLargeKl(
      advice.found.best ? Shown(kind, advice.expected_loss()) : 0, FindBasis(kind));
  if (!large.empty()) notes.push_back(std::move(large));
}

// Returns the smallest uniform plan within the limits, or the one of least loss if the loss has no
// limit.
std::optional<Point> BestUniform(const Found& found, const Limits& limits) {
  std::optional<Point> best;
  for (const Point& point : found.uniform) {
    if (!Meets(point.outcome, limits)) continue;
    if (!best) {
      best = point;
      continue;
    }
    const Outcome &mine = point.outcome, &other = best->outcome;
    const bool smaller = mine.mean_share() < other.mean_share() - kAlike;
    const bool as_small = mine.mean_share() <= other.mean_share() + kAlike;
    const bool loses_less = mine.mean_loss() < other.mean_loss();
    if (limits.loss ? smaller || (as_small && loses_less) : loses_less) best = point;
  }
  return best;
}

}  // namespace

bool Meets(const Outcome& outcome, const Limits& limits) {
  return (!limits.loss || outcome.worst_loss() <= *limits.loss) &&
         outcome.worst_share() <= limits.share + kSameShare;
}

Found Search(const Measured& measured, uint32_t candidates, const Limits& limits,
             ThreadPool& pool) {
  Found found;
  std::vector<Step> uniform, steps;
  for (uint32_t candidate = 0; candidate < candidates; ++candidate) {
    const auto choice = UniformChoice(measured, candidate);
    if (!choice) continue;
    uniform.push_back(ToStep(Mixture(measured, *choice)));
    found.uniform.push_back(EvaluatedPoint(measured, uniform.back()));
  }
  const Step whole = ToStep(Mixture(measured, Choice(measured.units.size(), 0)));
  const std::optional<Step> best_uniform = BestWithin(measured, uniform, limits);
  if (best_uniform) found.best_uniform = EvaluatedPoint(measured, *best_uniform);
  const Walker walker(measured, limits, pool);
  steps = uniform;
  steps.push_back(whole);
  walker.Descend(Mixture(measured, whole.choice), steps);
  for (const auto& start : {BestWithin(measured, steps, limits), best_uniform}) {
    if (!start) continue;
    Mixture mixture(measured, start->choice);
    walker.Refine(mixture, steps);
  }
  if (const auto best = BestWithin(measured, steps, limits))
    found.best = EvaluatedPoint(measured, *best);
  for (const Step& step : BuildFrontier(std::move(steps))) {
    found.frontier.push_back(EvaluatedPoint(measured, step));
  }
  std::stable_sort(found.uniform.begin(), found.uniform.end(), [](const Point& a, const Point& b) {
    return a.outcome.mean_share() > b.outcome.mean_share();
  });
  return found;
}

double CrossChecked::optimism() const {
  double sum = 0, count = 0;
  for (const Fold& fold : folds) {
    if (!fold.found || fold.promised <= 0 || fold.left_out_loss <= 0) continue;
    sum += std::log(fold.left_out_loss / fold.promised);
    ++count;
  }
  return count == 0 ? 1 : std::max(1.0, std::exp(sum / count));
}

CrossChecked CrossCheck(const Measured& measured, uint32_t candidates, const Limits& limits,
                        const Limits& judged, ThreadPool& pool) {
  CrossChecked checked;
  checked.halves = measured.runs.size() == 1;
  const Measured parts = checked.halves ? InHalves(measured) : measured;
  for (size_t out = 0; out < parts.runs.size(); ++out) {
    std::vector<size_t> others;
    for (size_t run = 0; run < parts.runs.size(); ++run) {
      if (run != out) others.push_back(run);
    }
    Fold fold;
    fold.left_out = out;
    const Found found = Search(OfRuns(parts, others), candidates, limits, pool);
    if (found.best) {
      const Outcome outcome = Mixture::Evaluate(OfRuns(parts, {out}), found.best->choice);
      fold.found = true;
      fold.promised = found.best->outcome.worst_loss();
      fold.left_out_loss = outcome.worst_loss();
      fold.left_out_share = outcome.worst_share();
      fold.holds = Meets(outcome, judged);
    }
    checked.folds.push_back(fold);
  }
  return checked;
}

const eviction::Calibration& FindCalibration(LossKind kind) {
  KV_ASSERT(kind != LossKind::kOutput);
  const auto method =
      IsFisher(kind) ? eviction::KlMethod::kGradients : eviction::KlMethod::kSensitivity;
  return eviction::FindCalibration(method, eviction::Cause::kEviction, FindBasis(kind));
}

eviction::Basis FindBasis(LossKind kind) {
  if (kind == LossKind::kFisherEvicted) return eviction::Basis::kEvicted;
  return kind == LossKind::kFisherBoth ? eviction::Basis::kBoth : eviction::Basis::kRecorded;
}

std::optional<LossKind> FindFisherKind(const Runs& runs) {
  bool has_recorded = true, has_evicted = true;
  for (const auto& run : runs) {
    const std::optional<GradientRows>& rows = run->trace().gradients;
    has_recorded = has_recorded && rows && rows->recorded() > 0;
    has_evicted = has_evicted && rows && rows->evicted > 0;
  }
  if (has_recorded && has_evicted) return LossKind::kFisherBoth;
  if (has_evicted) return LossKind::kFisherEvicted;
  return has_recorded ? std::optional(LossKind::kFisher) : std::nullopt;
}

double Shown(LossKind kind, double loss) {
  return kind == LossKind::kOutput ? std::sqrt(std::max(0.0, loss))
                                   : loss / FindCalibration(kind).median;
}

double ShownError(LossKind kind, double loss, double standard_error) {
  if (kind != LossKind::kOutput) return standard_error / FindCalibration(kind).median;
  const double root = Shown(kind, loss);
  return root > 0 ? standard_error / (2 * root) : 0;
}

double LossShownAs(LossKind kind, double shown) {
  return kind == LossKind::kOutput ? shown * shown : shown * FindCalibration(kind).median;
}

uint32_t UnitsWithoutFirst(const Measured& measured, const Choice& choice) {
  uint32_t count = 0;
  for (size_t u = 0; u < choice.size(); ++u) {
    count += measured.units[u].options[choice[u]].drops_first > 0;
  }
  return count;
}

// A mixture chosen among many looks better in the rows it was chosen on than elsewhere. The limit
// is therefore tightened until the extra loss that the folds show fits in it as well.
Searched SearchWithMargin(const Measured& measured, uint32_t candidates, const Limits& limits,
                          ThreadPool& pool) {
  Searched searched;
  Limits tight = limits;
  for (int round = 0; round < kMostMargins; ++round) {
    searched.found = Search(measured, candidates, tight, pool);
    searched.check = CrossCheck(measured, candidates, tight, limits, pool);
    searched.optimism = searched.check.optimism();
    if (!searched.found.best || !limits.loss || searched.expected_loss() <= *limits.loss) break;
    tight.loss = std::min(*limits.loss / searched.optimism, *tight.loss * kTighter);
  }
  Found& found = searched.found;
  found.best_uniform = BestUniform(found, limits);
  if (!found.best || !found.best_uniform || !limits.loss) return searched;
  const bool breaks = searched.expected_loss() > *limits.loss;
  if (breaks || found.best_uniform->outcome.mean_share() < found.best->outcome.mean_share()) {
    found.best = found.best_uniform;
    searched.optimism = 1;
  }
  return searched;
}

Advice Advise(const Runs& runs, const AdviceRequest& request, ThreadPool& pool,
              Progress* progress) {
  KV_ASSERT(!runs.empty());
  Advice advice;
  uint64_t shortest = UINT64_MAX;
  for (const auto& run : runs) shortest = std::min(shortest, run->end());
  advice.candidates = MakeCandidates(request.candidates, shortest);
  if (advice.candidates.empty() || runs.front()->layers().empty()) {
    throw Error(Finding::kUsage, "no policy can hold a budget within {} tokens", shortest)
        .Hint("give a smaller --budget, or fewer --streaming-sink tokens");
  }
  advice.effects = MeasureEffects(runs, advice.candidates, request.measure, pool, progress);
  const auto count = static_cast<uint32_t>(advice.candidates.size());
  if (IsFisher(request.measure.kind)) advice.effects.measured.independent = kIndependent;
  Searched searched = SearchWithMargin(advice.measured(), count, request.limits, pool);
  advice.found = std::move(searched.found);
  advice.check = std::move(searched.check);
  advice.optimism = searched.optimism;
  if (advice.found.best) {
    const Choice& choice = advice.found.best->choice;
    for (const auto& run : runs) {
      advice.plans.push_back(MakePlans(*run, advice.candidates, advice.measured(), choice,
                                       request.measure.seed, pool));
      std::vector<eviction::LayerPlan> plans;
      for (const PlanOfLayer& layer : advice.plans.back()) plans.push_back(layer.plan);
      advice.measured_again.push_back(MeasurePlans(*run, {&plans, 1}, request.measure, pool)[0]);
    }
    if (request.context) {
      advice.at_context = HoldsAt(runs, advice, choice, *request.context);
    }
  }
  NoteRows(runs, advice, advice.warnings);
  NoteSinks(advice, advice.warnings);
  NoteCheck(advice, advice.warnings);
  advice.notes.push_back(
      "a ratio is the bytes of K and V of the whole cache / the bytes kept at the end; a budget is "
      "a share of all tokens seen, so that repeated evictions do not compound");
  advice.notes.push_back("open loop: evictions do not change the hidden states of later layers");
  NoteStrides(runs, advice.notes);
  NoteLosses(runs, advice, advice.notes);
  for (std::string remark : {RemarkOnBlocks(runs.front()->snapshot()),
                             RemarkOnWindows(runs.front()->trace(), runs.front()->end())}) {
    if (!remark.empty()) advice.notes.push_back(std::move(remark));
  }
  return advice;
}

}  // namespace kv::advise
