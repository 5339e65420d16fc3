// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Combines eviction with smaller cache types: measures each pair of types in each layer, then
// combinations of the best of both kinds, and searches among all of them (Finder).
#include "lib/study/advise/savings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lib/core/base/error.h"

namespace kv::advise {
namespace {

using quantisation::KeptPair;
using quantisation::StoredLayer;
using quantisation::TypePair;

// Numbers of candidates and of pairs of types that are combined: enough to fill the front, few
// enough to measure.
constexpr size_t kMostCandidates = 6, kMostPairs = 5;
// an option that loses more than this many times the limit is not combined
constexpr double kBeyondLimit = 2;

// The effect of one saving in one layer of one run.
struct Measure {
  const eviction::LayerPlan* plan = nullptr;
  std::optional<uint32_t> types;
};

// Types that turned some value into NaN or infinity.
struct Broken {
  std::set<uint32_t> k, v;

  bool Has(const TypePair& pair) const { return k.count(pair.k) != 0 || v.count(pair.v) != 0; }
};

double BytesAs(const StoredLayer& stored, const TypePair& pair, const LayerKv& layer) {
  const auto tokens = static_cast<double>(stored.tokens);
  const double k = static_cast<double>(layer.k.row_bytes()) * tokens;
  const double v = static_cast<double>(layer.v->row_bytes()) * tokens;
  return ((pair.k == TypePair::kFull ? k : stored.k_stored[pair.k].bytes) +
          (pair.v == TypePair::kFull ? v : stored.v_stored[pair.v].bytes)) /
         (k + v);
}

std::vector<AttentionRows> TakeHeads(std::vector<quantisation::PairRows> measured) {
  std::vector<AttentionRows> heads;
  for (quantisation::PairRows& rows : measured) {
    AttentionRows& head = heads.emplace_back();
    head.mass.resize(rows.error2.size());
    head.error2 = std::move(rows.error2);
    head.norm2 = std::move(rows.norm2);
    head.changed_norm2 = std::move(rows.changed2);
    head.dot = std::move(rows.dot);
    head.log_p_change = std::move(rows.log_p_change);
  }
  return heads;
}

std::vector<Alternative> MeasureLayer(const AdviseRun& run, size_t layer,
                                      const SavingsRequest& request,
                                      const std::vector<Measure>& measures,
                                      const eviction::MeasuredRows& rows, ThreadPool& pool,
                                      Broken* broken) {
  const LayerAttention& attention = run.layers()[layer];
  quantisation::StoreRequest store = request.store;
  store.first_tokens = run.prompt();
  const StoredLayer stored = quantisation::StoreLayer(
      attention, static_cast<uint32_t>(run.snapshot().layers.size()), store, pool);
  if (broken != nullptr) {
    for (uint32_t i = 0; i < stored.k_stored.size(); ++i) {
      if (stored.k_stored[i].not_finite > 0) broken->k.insert(i);
    }
    for (uint32_t i = 0; i < stored.v_stored.size(); ++i) {
      if (stored.v_stored[i].not_finite > 0) broken->v.insert(i);
    }
  }
  std::vector<KeptPair> kept;
  for (const Measure& measure : measures) {
    kept.push_back({measure.plan, measure.types ? request.pairs[*measure.types] : TypePair{}});
  }
  auto measured = quantisation::MeasureKept(attention, stored, store, kept, rows, pool);
  std::vector<Alternative> alternatives;
  for (size_t i = 0; i < measures.size(); ++i) {
    Alternative& alternative = alternatives.emplace_back();
    alternative.heads = TakeHeads(std::move(measured[i]));
    if (measures[i].plan != nullptr) alternative.plan = *measures[i].plan;
    alternative.bytes = BytesAs(stored, kept[i].types, *run.snapshot().Find(attention.layer()));
  }
  return alternatives;
}

std::vector<const AdviseRun*> Pointers(const Runs& runs) {
  std::vector<const AdviseRun*> all;
  for (const auto& run : runs) all.push_back(run.get());
  return all;
}

MeasureRequest ByLayerRequest(const AdviceRequest& request) {
  MeasureRequest measure = request.measure;
  measure.units = eviction::Granularity::kLayer;
  return measure;
}

void AddTo(Effect& sum, const Effect& more) {
  if (sum.empty()) {
    sum = more;
    return;
  }
  for (size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

// Returns effects of whole layers, from those of kv heads that were measured separately.
Measured ByLayer(const Measured& measured) {
  Measured by_layer{measured.kind, measured.groups, measured.runs, {}, measured.independent};
  for (const Unit& unit : measured.units) {
    if (by_layer.units.empty() || by_layer.units.back().layer != unit.layer) {
      by_layer.units.push_back(unit);
      by_layer.units.back().kv_head = 0;
      continue;
    }
    std::vector<Option>& options = by_layer.units.back().options;
    for (size_t i = 0; i < options.size(); ++i) {
      const Option& more = unit.options[i];
      for (size_t run = 0; run < measured.runs.size(); ++run) {
        options[i].kept[run] += more.kept[run];
        options[i].held[run] += more.held[run];
        AddTo(options[i].effect[run], more.effect[run]);
        if (!more.error2.empty()) AddTo(options[i].error2[run], more.error2[run]);
      }
      options[i].drops_first = std::max(options[i].drops_first, more.drops_first);
    }
  }
  return by_layer;
}

// Appends options of the same units that were measured elsewhere, as candidates from `first` on.
void AddOptions(Measured from, uint32_t first, const std::vector<uint8_t>& is_wanted,
                Measured& to) {
  for (size_t u = 0; u < to.units.size(); ++u) {
    for (size_t c = 0; c < is_wanted.size(); ++c) {
      if (!is_wanted[c]) continue;
      Option& option = from.units[u].options[c + 1];
      option.candidate = first + static_cast<uint32_t>(c);
      to.units[u].options.push_back(std::move(option));
    }
  }
}

// Returns uniform points that no other uniform point beats, spread over the front.
std::vector<uint32_t> BuildFront(const std::vector<Point>& uniform, const Limits& limits,
                                 size_t most) {
  std::vector<const Point*> order;
  for (const Point& point : uniform) {
    const double loss = point.outcome.mean_loss();
    if (std::isfinite(loss) && (!limits.loss || loss <= kBeyondLimit * *limits.loss))
      order.push_back(&point);
  }
  std::stable_sort(order.begin(), order.end(), [](const Point* a, const Point* b) {
    return a->outcome.mean_share() < b->outcome.mean_share();
  });
  std::vector<uint32_t> front;
  double least = INFINITY;
  for (const Point* point : order) {
    if (point->outcome.mean_loss() >= least) continue;
    least = point->outcome.mean_loss();
    front.push_back(*point->uniform);
  }
  if (front.size() <= most) return front;
  std::vector<uint32_t> some;
  for (size_t i = 0; i < most; ++i) some.push_back(front[i * (front.size() - 1) / (most - 1)]);
  return some;
}

// Returns the candidates on the front, and those that most layers of the best mixture follow.
std::vector<uint32_t> CandidatesToCombine(const Advice& advice, const Limits& limits) {
  std::vector<uint32_t> chosen = BuildFront(advice.found.uniform, limits, kMostCandidates - 2);
  std::map<uint32_t, uint32_t> used;
  if (advice.found.best) {
    const Choice& choice = advice.found.best->choice;
    for (size_t u = 0; u < choice.size(); ++u) {
      const uint32_t c = advice.measured().units[u].options[choice[u]].candidate;
      if (c < advice.candidates.size()) ++used[c];
    }
  }
  std::vector<std::pair<uint32_t, uint32_t>> by_use;
  for (const auto& [candidate, count] : used) by_use.push_back({count, candidate});
  std::stable_sort(by_use.begin(), by_use.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [count, candidate] : by_use) {
    if (chosen.size() >= kMostCandidates) break;
    if (std::find(chosen.begin(), chosen.end(), candidate) == chosen.end())
      chosen.push_back(candidate);
  }
  return chosen;
}

// Follows the steps of FindSavings.
class Finder {
 public:
  Finder(const Runs& runs, const AdviceRequest& request, const Advice& advice, ThreadPool& pool,
         Progress* progress, Savings& savings)
      : runs_(runs),
        request_(request),
        measure_(ByLayerRequest(request)),
        advice_(advice),
        pool_(pool),
        progress_(progress),
        savings_(savings) {}

  void Run() {
    savings_.measured = ByLayer(advice_.measured());
    for (uint32_t c = 0; c < advice_.candidates.size(); ++c) AddOption({c, std::nullopt});
    MeasureTypes();
    MeasureBoth();
    savings_.searched = SearchWithMargin(savings_.measured, Count(), request_.limits, pool_);
    if (savings_.searched.found.best) MeasureBest();
  }

 private:
  uint32_t Count() const { return static_cast<uint32_t>(savings_.options.size()); }
  void AddOption(Saving saving, double added = NAN) {
    savings_.options.push_back(saving);
    savings_.added_loss.push_back(added);
  }

  void MeasureTypes() {
    const auto count = static_cast<uint32_t>(savings_.request.pairs.size());
    std::vector<Measure> measures(count);
    for (uint32_t i = 0; i < count; ++i) measures[i].types = i;
    Broken broken;
    Effects effects = MeasureAlternatives(
        Pointers(runs_), count,
        [&](const AdviseRun& run, size_t layer, const eviction::MeasuredRows& rows) {
          return MeasureLayer(run, layer, savings_.request, measures, rows, pool_, &broken);
        },
        measure_, progress_);
    std::vector<uint8_t> is_wanted(count);
    for (uint32_t i = 0; i < count; ++i) is_wanted[i] = !broken.Has(savings_.request.pairs[i]);
    NoteBroken(broken);
    effects.measured.independent = advice_.measured().independent;
    Measured alone = effects.measured;
    for (Unit& unit : alone.units) unit.options.resize(1);
    AddOptions(effects.measured, 0, is_wanted, alone);
    savings_.types = Search(alone, count, request_.limits, pool_);
    const uint32_t first = Count();
    for (uint32_t i = 0; i < count; ++i) AddOption({std::nullopt, i});
    AddOptions(std::move(effects.measured), first, is_wanted, savings_.measured);
  }

  void NoteBroken(const Broken& broken) {
    const auto note = [&](const std::set<uint32_t>& types, const auto& all, std::string_view side) {
      for (const uint32_t type : types) {
        savings_.warnings.push_back(
            fmt::format("{} of {}: values are NaN or infinite once stored: it is left out",
                        all[type]->name, side));
      }
    };
    note(broken.k, savings_.request.store.k_types, "K");
    note(broken.v, savings_.request.store.v_types, "V");
  }

  void MeasureBoth() {
    const std::vector<uint32_t> candidates = CandidatesToCombine(advice_, request_.limits);
    const std::vector<uint32_t> pairs =
        BuildFront(savings_.types.uniform, request_.limits, kMostPairs);
    const auto count = static_cast<uint32_t>(candidates.size() * pairs.size());
    if (count == 0) return;
    std::vector<const Candidate*> each;
    for (const uint32_t c : candidates) each.push_back(&advice_.candidates[c]);
    Effects effects = MeasureAlternatives(
        Pointers(runs_), count,
        [&](const AdviseRun& run, size_t layer, const eviction::MeasuredRows& rows) {
          const auto plans = PlanCandidates(run, layer, each, measure_.seed, pool_);
          std::vector<Measure> measures;
          for (const eviction::LayerPlan& plan : plans) {
            for (const uint32_t pair : pairs) measures.push_back({&plan, pair});
          }
          return MeasureLayer(run, layer, savings_.request, measures, rows, pool_, nullptr);
        },
        measure_, progress_);
    const uint32_t first = Count();
    for (const uint32_t c : candidates) {
      for (const uint32_t pair : pairs)
        AddOption({c, pair}, UniformLoss(advice_.found.uniform, c) +
                                 UniformLoss(savings_.types.uniform, pair));
    }
    AddOptions(std::move(effects.measured), first, std::vector<uint8_t>(count, 1),
               savings_.measured);
  }

  static double UniformLoss(const std::vector<Point>& uniform, uint32_t candidate) {
    const auto found = std::find_if(uniform.begin(), uniform.end(),
                                    [&](const Point& point) { return point.uniform == candidate; });
    return found == uniform.end() ? NAN : found->outcome.mean_loss();
  }

  void MeasureBest() {
    const Choice& choice = savings_.searched.found.best->choice;
    savings_.types_of_layers = savings_.ListPairs(choice);
    for (const auto& run : runs_) {
      savings_.plans.push_back(PlanEvictions(*run, request_, advice_, savings_, choice, pool_));
      const AdviseRun* const one[] = {run.get()};
      const Effects effects = MeasureAlternatives(
          one, 1,
          [&](const AdviseRun& each, size_t layer, const eviction::MeasuredRows& rows) {
            const Measure measure{&savings_.plans.back()[layer].plan,
                                  savings_.types_of_layers[layer]};
            return MeasureLayer(each, layer, savings_.request, {measure}, rows, pool_, nullptr);
          },
          measure_, nullptr);
      savings_.measured_again.push_back(
          Mixture::Evaluate(effects.measured, Choice(effects.measured.units.size(), 1)));
    }
  }

  const Runs& runs_;
  const AdviceRequest& request_;
  MeasureRequest measure_;
  const Advice& advice_;
  ThreadPool& pool_;
  Progress* progress_;
  Savings& savings_;
};

}  // namespace

const Saving* Savings::FindOption(const Choice& choice, size_t unit) const {
  const uint32_t c = measured.units[unit].options[choice[unit]].candidate;
  return c < options.size() ? &options[c] : nullptr;
}

std::vector<std::optional<uint32_t>> Savings::ListPairs(const Choice& choice) const {
  std::vector<std::optional<uint32_t>> pairs;
  for (size_t u = 0; u < choice.size(); ++u) {
    const Saving* saving = FindOption(choice, u);
    pairs.push_back(saving == nullptr ? std::nullopt : saving->types);
  }
  return pairs;
}

std::vector<PlanOfLayer> PlanEvictions(const AdviseRun& run, const AdviceRequest& request,
                                       const Advice& advice, const Savings& savings,
                                       const Choice& choice, ThreadPool& pool) {
  const Measured by_layer = ByLayer(advice.measured());
  Choice evicting;  // options of `by_layer`
  for (size_t u = 0; u < choice.size(); ++u) {
    const Saving* saving = savings.FindOption(choice, u);
    evicting.push_back(saving != nullptr && saving->candidate ? *saving->candidate + 1 : 0);
  }
  return MakePlans(run, advice.candidates, by_layer, evicting, request.measure.seed, pool);
}

std::string WhyNoTypes(const Runs& runs) {
  for (const auto& run : runs) {
    if (run->trace().level != TraceLevel::kQueries)
      return "the trace has no queries, which show the effect of changed keys";
    for (const LayerKv& layer : run->snapshot().layers) {
      if (IsBlockQuantised(layer.k.dtype) || (layer.v && IsBlockQuantised(layer.v->dtype)))
        return "the cache is quantised already";
    }
    for (const LayerAttention& attention : run->layers()) {
      if (!attention.has_queries()) return "the trace has no queries of some layers";
    }
  }
  return {};
}

Savings FindSavings(const Runs& runs, const AdviceRequest& request, const SavingsRequest& types,
                    const Advice& advice, ThreadPool& pool, Progress* progress) {
  Savings savings;
  savings.request = types;
  Finder(runs, request, advice, pool, progress, savings).Run();
  return savings;
}

}  // namespace kv::advise
