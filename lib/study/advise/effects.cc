// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replays every candidate in every layer of every run and sums its effect per row, so that mixtures
// can be evaluated by adding vectors. Measurer walks layer by layer, because the queries and
// outputs of one layer are all that has to be in memory.
#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/study/advise/advice.h"
#include "lib/study/advise/candidates.h"

namespace kv::advise {
namespace {

// Sums over the rows of some query heads of a layer: an effect under construction.
struct HeadSums {
  std::vector<double> norm2;        // [row]
  std::vector<double> effect;       // [channel][row]
  std::vector<double> error2;       // [row]
  std::vector<uint8_t> is_defined;  // [row]: 1 if the figures above are finite
};

// A sample of gradients whose effects are one channel, and the factor that gives their squares the
// sample's weight in the mean over channels; 1 if all samples weigh the same.
struct Channel {
  uint64_t sample = 0;
  double factor = 1;
};

std::vector<Channel> ListChannels(const GradientRows& rows, LossKind kind) {
  std::vector<Channel> channels;
  const std::vector<eviction::SampleGroup> groups = eviction::GroupSamples(rows, FindBasis(kind));
  double count = 0;
  for (const eviction::SampleGroup& group : groups) count += group.size();
  for (const eviction::SampleGroup& group : groups) {
    const double factor = std::sqrt(group.share * count / group.size());
    for (uint64_t s = group.begin; s < group.end; ++s) channels.push_back({s, factor});
  }
  return channels;
}

bool IsDefined(std::span<const Channel> channels, std::span<const AttentionRows> heads,
               uint64_t row) {
  return std::all_of(heads.begin(), heads.end(), [&](const AttentionRows& head) {
    if (!std::isfinite(head.error2[row]) || !std::isfinite(head.dot[row])) return false;
    return std::all_of(channels.begin(), channels.end(), [&](const Channel& of) {
      return std::isfinite(head.log_p_change[of.sample][row]);
    });
  });
}

// `channels` is empty for losses that need no gradients; `count` is the number of all channels.
HeadSums SumHeads(LossKind kind, uint64_t count, std::span<const Channel> channels,
                  std::span<const AttentionRows> heads) {
  const uint64_t rows = heads.front().rows();
  HeadSums sums{std::vector<double>(rows), std::vector<double>(count * rows),
                std::vector<double>(rows), std::vector<uint8_t>(rows)};
  for (uint64_t row = 0; row < rows; ++row) {
    sums.is_defined[row] = IsDefined(channels, heads, row);
    for (const AttentionRows& head : heads) {
      sums.norm2[row] += head.norm2[row];
      sums.error2[row] += head.error2[row];
      if (kind == LossKind::kOutput) {
        sums.effect[row] += head.error2[row];
      } else if (kind == LossKind::kSensitivity) {
        sums.effect[row] += head.dot[row] - head.norm2[row];
        sums.effect[rows + row] += head.changed_norm2[row] - head.norm2[row];
      } else {
        for (size_t c = 0; c < channels.size(); ++c)
          sums.effect[c * rows + row] +=
              channels[c].factor * head.log_p_change[channels[c].sample][row];
      }
    }
  }
  return sums;
}

Effect Narrowed(const std::vector<double>& values) {
  Effect effect(values.size());
  std::transform(values.begin(), values.end(), effect.begin(),
                 [](double value) { return static_cast<float>(value); });
  return effect;
}

uint32_t UnitsPerLayer(const MeasureRequest& request, const LayerAttention& attention) {
  return request.units == eviction::Granularity::kLayer ? 1 : attention.kv_heads();
}

// Tokens that a unit of a plan holds in a run: at its end, and summed over the decode steps.
struct Held {
  double at_end = 0, over_steps = 0;
};
Held HeldBy(const AdviseRun& run, uint32_t layer, const eviction::LayerPlan& plan, uint32_t unit) {
  uint64_t at_end = 0, over_steps = 0;
  const uint64_t window = TokensSeen(run.trace(), layer, run.end() - 1);
  for (uint64_t position = 0; position < run.end(); ++position) {
    // A token is gone at the end of the step whose row is the last to see it, or once it is outside
    // the window.
    const uint64_t gone = std::min<uint64_t>(plan.last_seen(unit, position),
                                             window < run.end() ? position + window : UINT64_MAX);
    at_end += gone >= run.end();
    const uint64_t from = std::max(position, run.prompt()), to = std::min(gone, run.end());
    over_steps += to - std::min(from, to);
  }
  return {static_cast<double>(at_end), static_cast<double>(over_steps)};
}

// Returns the tokens of a layer that an uncompressed cache holds, and for the whole cache their
// mean over layers, weighted by bytes.
Held WholeLayer(const AdviseRun& run, uint32_t layer) { return HeldBy(run, layer, {}, 0); }
Held WholeCache(const AdviseRun& run) {
  Held sum;
  double bytes = 0;
  for (const LayerKv& layer : run.snapshot().layers) {
    const auto of_layer = static_cast<double>(layer.row_bytes());
    const Held whole = WholeLayer(run, layer.index);
    bytes += of_layer;
    sum.at_end += of_layer * whole.at_end;
    sum.over_steps += of_layer * whole.over_steps;
  }
  return {sum.at_end / bytes, sum.over_steps / bytes};
}

void RequireLoss(const MeasureRequest& request, const AdviseRun& run) {
  const LossKind kind = request.kind;
  for (const LayerAttention& attention : run.layers()) {
    if (!attention.kv().v) {
      throw Error(Finding::kUsage, "layer {} has no V, so outputs of attention cannot be compared",
                  attention.layer())
          .File(run.name());
    }
    if (kind == LossKind::kSensitivity && request.weights.count(attention.layer()) == 0) {
      throw Error(Finding::kUsage, "--sensitivity: has no weight for layer {}", attention.layer())
          .File(run.name());
    }
    if (IsFisher(kind) && !eviction::HasChanges(attention)) {
      throw Error(Finding::kUsage, "layer {} has no gradients: no loss in nats", attention.layer())
          .File(run.name());
    }
  }
}

// Measures the runs one after another, layer by layer.
class Measurer {
 public:
  Measurer(uint32_t candidates, const MeasureRequest& request)
      : candidates_(candidates), request_(request) {}

  Effects Run(std::span<const AdviseRun* const> runs, const AlternativesOf& alternatives_of,
              Progress* progress) {
    Measured& measured = effects_.measured;
    measured.kind = request_.kind;
    measured.groups = request_.kind == LossKind::kSensitivity
                          ? static_cast<uint32_t>(runs.front()->layers().size())
                          : 1;
    MakeUnits(*runs.front());
    uint64_t bytes = 0;
    for (const AdviseRun* run : runs) bytes += run->bytes_per_token() * run->end();
    if (progress != nullptr) progress->Begin(bytes);
    for (const AdviseRun* run : runs) {
      RequireLike(*run, *runs.front());
      AddRun(*run);
      for (size_t layer = 0; layer < run->layers().size(); ++layer) {
        AddLayer(*run, layer, alternatives_of(*run, layer, effects_.rows.back()));
        if (progress != nullptr) {
          progress->Advance(run->layers()[layer].kv().row_bytes() * run->end());
        }
      }
      LeaveUndefinedRowsOut();
      measured.runs.back().norm2_sum = SumNorm2(measured.runs.back());
    }
    return std::move(effects_);
  }

 private:
  void MakeUnits(const AdviseRun& run) {
    for (uint32_t layer = 0; layer < run.layers().size(); ++layer) {
      const LayerAttention& attention = run.layers()[layer];
      for (uint32_t u = 0; u < UnitsPerLayer(request_, attention); ++u) {
        Unit unit{attention.layer(), u, 0, {}};
        if (request_.kind == LossKind::kSensitivity) unit.group = layer;
        unit.options.resize(candidates_ + 1);
        unit.options[0].candidate = UINT32_MAX;
        for (uint32_t c = 0; c < candidates_; ++c) unit.options[c + 1].candidate = c;
        effects_.measured.units.push_back(std::move(unit));
      }
    }
  }

  void AddRun(const AdviseRun& run) {
    RequireLoss(request_, run);
    uint64_t begin = run.prompt(), end = run.end();
    if (IsFisher(request_.kind)) {
      begin = std::max(begin, run.trace().gradients->begin);
      end = std::min(end, run.trace().gradients->end());
    }
    if (begin >= end) {
      throw Error(Finding::kUsage,
                  "its gradients are of positions {} to {}, but decode steps begin at {}",
                  run.trace().gradients->begin, run.trace().gradients->end() - 1, run.prompt())
          .File(run.name());
    }
    effects_.rows.push_back(eviction::ChooseRows(begin, end, request_.rows, request_.seed));
    effects_.undefined_rows.push_back(0);
    is_undefined_.assign(effects_.rows.back().positions.size(), 0);
    RunRows rows;
    rows.rows = effects_.rows.back().positions.size();
    rows.population = effects_.rows.back().population;
    if (IsFisher(request_.kind)) {
      channels_ = ListChannels(*run.trace().gradients, request_.kind);
      rows.channels = channels_.size();
    }
    if (request_.kind == LossKind::kSensitivity) {
      rows.channels = 2;
      for (const LayerAttention& attention : run.layers()) {
        rows.weight.push_back(request_.weights.at(attention.layer()));
      }
    }
    if (!IsFisher(request_.kind)) {
      rows.norm2.assign(effects_.measured.groups, std::vector<float>(rows.rows));
    }
    whole_ = WholeCache(run);
    bytes_ = 0;
    for (const LayerKv& layer : run.snapshot().layers)
      bytes_ += static_cast<double>(layer.row_bytes());
    Held chosen;
    for (const LayerAttention& attention : run.layers()) {
      const auto of_layer = static_cast<double>(attention.kv().row_bytes());
      const Held whole = WholeLayer(run, attention.layer());
      chosen.at_end += of_layer * (whole.at_end / whole_.at_end);
      chosen.over_steps += of_layer * (whole.over_steps / whole_.over_steps);
    }
    if (!run.missing_layers().empty()) {
      rows.fixed_kept = 1 - chosen.at_end / bytes_;
      rows.fixed_held = 1 - chosen.over_steps / bytes_;
    }
    effects_.measured.runs.push_back(std::move(rows));
    first_unit_ = 0;
  }

  void AddLayer(const AdviseRun& run, size_t layer, const std::vector<Alternative>& alternatives) {
    KV_ASSERT(alternatives.size() == candidates_);
    const LayerAttention& attention = run.layers()[layer];
    const uint32_t units = UnitsPerLayer(request_, attention);
    const Held whole = WholeLayer(run, attention.layer());
    for (uint32_t u = 0; u < units; ++u) {
      Unit& unit = effects_.measured.units[first_unit_ + u];
      const double share = run.head_bytes_per_token(layer) * attention.kv_heads() / units / bytes_;
      AddOption(share * (whole.at_end / whole_.at_end),
                share * (whole.over_steps / whole_.over_steps), {}, false, unit.options[0]);
      unit.options[0].error2.resize(unit.options[0].effect.size());
      std::vector<double> norm2(is_undefined_.size(), NAN);
      for (size_t c = 0; c < alternatives.size(); ++c) {
        const Alternative& alternative = alternatives[c];
        const Held held = ComputeHeldByUnit(run, attention.layer(), alternative.plan, u, units);
        const double bytes = share * alternative.bytes;
        const std::span<const AttentionRows> heads(alternative.heads);
        const size_t count = heads.size() / units;
        const HeadSums sums = SumHeads(request_.kind, effects_.measured.runs.back().channels,
                                       channels_, heads.subspan(u * count, count));
        AddOption(bytes * held.at_end / whole_.at_end, bytes * held.over_steps / whole_.over_steps,
                  Narrowed(sums.effect), DropsFirst(alternative.plan, u, units),
                  unit.options[c + 1]);
        if (IsFisher(request_.kind)) {
          unit.options[c + 1].error2.push_back(Narrowed(sums.error2));
        }
        for (size_t row = 0; row < norm2.size(); ++row) {
          if (std::isnan(norm2[row]) && sums.is_defined[row]) norm2[row] = sums.norm2[row];
        }
      }
      AddNorm(norm2, unit.group);
    }
    first_unit_ += units;
  }

  static void AddOption(double kept, double held, Effect effect, bool drops, Option& option) {
    option.kept.push_back(kept);
    option.held.push_back(held);
    option.effect.push_back(std::move(effect));
    option.drops_first += drops;
  }

  // Returns what a unit holds: for a layer whose kv heads differ, their mean.
  static Held ComputeHeldByUnit(const AdviseRun& run, uint32_t layer,
                                const eviction::LayerPlan& plan, uint32_t unit, uint32_t units) {
    if (plan.units == 1) return HeldBy(run, layer, plan, 0);
    if (units > 1) return HeldBy(run, layer, plan, unit);
    Held mean;
    for (uint32_t head = 0; head < plan.units; ++head) {
      const Held held = HeldBy(run, layer, plan, head);
      mean.at_end += held.at_end / plan.units;
      mean.over_steps += held.over_steps / plan.units;
    }
    return mean;
  }

  // Returns true if some kv head of the unit evicts the first token.
  static bool DropsFirst(const eviction::LayerPlan& plan, uint32_t unit, uint32_t units) {
    const uint32_t begin = plan.units == 1 || units == 1 ? 0 : unit;
    const uint32_t end = plan.units == 1 ? 1 : units == 1 ? plan.units : unit + 1;
    for (uint32_t head = begin; head < end; ++head) {
      if (plan.last_seen(head, 0) != eviction::LayerPlan::kStays) return true;
    }
    return false;
  }

  // The outputs of the whole cache are the same for every alternative. A row that is undefined
  // under all of them has queries, keys, values or gradients that are not finite.
  void AddNorm(const std::vector<double>& norm2, uint32_t group) {
    RunRows& run = effects_.measured.runs.back();
    for (uint64_t row = 0; row < run.rows; ++row) {
      is_undefined_[row] |= std::isnan(norm2[row]);
      if (!run.norm2.empty()) run.norm2[group][row] += static_cast<float>(norm2[row]);
    }
  }

  // A row that is undefined in one part of the model cannot be used for a mixture, so the mean
  // leaves it out.
  void LeaveUndefinedRowsOut() {
    std::vector<uint64_t> defined;
    for (uint64_t row = 0; row < is_undefined_.size(); ++row) {
      if (!is_undefined_[row]) defined.push_back(row);
    }
    effects_.undefined_rows.back() = is_undefined_.size() - defined.size();
    if (defined.size() == is_undefined_.size()) return;
    KeepRows(defined, effects_.measured.runs.size() - 1, effects_.measured);
  }

  uint32_t candidates_;
  const MeasureRequest& request_;
  Effects effects_;
  size_t first_unit_ = 0;          // first unit of the current layer
  std::vector<Channel> channels_;  // of the current run; empty without gradients
  Held whole_;                     // tokens that a whole cache holds during the current run
  double bytes_ = 0;               // bytes of a token in all layers
  // [row] of the current run: 1 if undefined in some part of the model
  std::vector<uint8_t> is_undefined_;
};

std::vector<Alternative> MakeAlternatives(const LayerAttention& attention,
                                          std::vector<eviction::LayerPlan> plans,
                                          const MeasureRequest& request,
                                          const eviction::MeasuredRows& rows, ThreadPool& pool) {
  std::vector<const eviction::LayerPlan*> each;
  for (const eviction::LayerPlan& plan : plans) each.push_back(&plan);
  auto of_plan = eviction::MeasureHeads(attention, each, rows, pool, IsFisher(request.kind),
                                        AttentionFigures::kNoTopK);
  std::vector<Alternative> alternatives;
  for (size_t c = 0; c < plans.size(); ++c)
    alternatives.push_back({std::move(of_plan[c]), std::move(plans[c]), 1});
  return alternatives;
}

}  // namespace

Effects MeasureAlternatives(std::span<const AdviseRun* const> runs, uint32_t count,
                            const AlternativesOf& alternatives_of, const MeasureRequest& request,
                            Progress* progress) {
  return Measurer(count, request).Run(runs, alternatives_of, progress);
}

Effects MeasureEffects(const Runs& runs, const std::vector<Candidate>& candidates,
                       const MeasureRequest& request, ThreadPool& pool, Progress* progress) {
  std::vector<const AdviseRun*> all;
  for (const auto& run : runs) all.push_back(run.get());
  std::vector<const Candidate*> each;
  for (const Candidate& candidate : candidates) each.push_back(&candidate);
  Effects effects = MeasureAlternatives(
      all, static_cast<uint32_t>(candidates.size()),
      [&](const AdviseRun& run, size_t layer, const eviction::MeasuredRows& rows) {
        return MakeAlternatives(run.layers()[layer],
                                PlanCandidates(run, layer, each, request.seed, pool), request, rows,
                                pool);
      },
      request, progress);
  for (size_t r = 0; r < runs.size(); ++r) {
    if (effects.measured.runs[r].rows > 0) continue;
    throw Error(Finding::kBadField,
                "all {} measured rows are undefined, by NaN or Inf in queries, keys, values or "
                "gradients: no row is left to advise by",
                effects.undefined_rows[r])
        .File(runs[r]->name());
  }
  return effects;
}

std::vector<Outcome> MeasurePlans(const AdviseRun& run, std::span<const PlansOfRun> alternatives,
                                  const MeasureRequest& request, ThreadPool& pool) {
  for (const PlansOfRun& plans : alternatives) KV_ASSERT(plans.size() == run.layers().size());
  const AdviseRun* const one[] = {&run};
  const auto alternatives_of = [&](const AdviseRun&, size_t layer,
                                   const eviction::MeasuredRows& rows) {
    std::vector<eviction::LayerPlan> of_layer;
    for (const PlansOfRun& plans : alternatives) of_layer.push_back(plans[layer]);
    return MakeAlternatives(run.layers()[layer], std::move(of_layer), request, rows, pool);
  };
  const auto count = static_cast<uint32_t>(alternatives.size());
  const Effects effects = MeasureAlternatives(one, count, alternatives_of, request, nullptr);
  std::vector<Outcome> outcomes;
  for (uint32_t i = 0; i < count; ++i) {
    const Choice all_take_it(effects.measured.units.size(), i + 1);
    outcomes.push_back(Mixture::Evaluate(effects.measured, all_take_it));
  }
  return outcomes;
}

}  // namespace kv::advise
