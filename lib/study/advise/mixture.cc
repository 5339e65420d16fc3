// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Losses of mixtures from measured effects: sums of vectors per group of units, and how the loss
// changes if one unit takes another option.
#include "lib/study/advise/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/study/attention/attention.h"

namespace kv::advise {
namespace {

// Returns the values of some rows, [channel][row].
std::vector<float> Select(const std::vector<float>& values, uint64_t rows,
                          const std::vector<uint64_t>& some) {
  std::vector<float> out;
  for (uint64_t from = 0; from < values.size(); from += rows) {
    for (const uint64_t row : some) out.push_back(values[from + row]);
  }
  return out;
}

RunRows Select(const RunRows& run, const std::vector<uint64_t>& some) {
  RunRows part = run;
  part.rows = some.size();
  part.population = run.population * some.size() / std::max<uint64_t>(1, run.rows);
  for (auto& of_group : part.norm2) of_group = Select(of_group, run.rows, some);
  part.norm2_sum = SumNorm2(part);
  return part;
}

constexpr double kLeastNorm2 = 1e-24;  // avoids a division of the error by zero

// The sum of a group, or the same sum with one effect in place of another. An empty effect is zero.
class GroupSum {
 public:
  GroupSum(std::span<const double> sum, const Effect& from, const Effect& to)
      : sum_(sum), from_(from), to_(to) {}
  double operator[](size_t i) const {
    double value = sum_[i];
    if (!from_.empty()) value -= static_cast<double>(from_[i]);
    if (!to_.empty()) value += static_cast<double>(to_[i]);
    return value;
  }
  size_t size() const { return sum_.size(); }

 private:
  std::span<const double> sum_;
  const Effect &from_, &to_;
};

template <typename Sum>
double CosineLoss(const RunRows& run, uint32_t group, const Sum& sum) {
  double lost = 0;
  for (uint64_t row = 0; row < run.rows; ++row) {
    const auto norm2 = static_cast<double>(run.norm2[group][row]);
    const double changed2 = std::max(0.0, norm2 + sum[run.rows + row]);
    if (norm2 <= kLeastNorm2) continue;  // a zero output has no direction that could change
    if (changed2 <= kLeastNorm2) {
      lost += 1;
    } else {
      lost += std::max(0.0, 1 - (norm2 + sum[row]) / std::sqrt(norm2 * changed2));
    }
  }
  return run.weight[group] * 2 * lost / static_cast<double>(std::max<uint64_t>(1, run.rows));
}

// Returns half the mean square, summed in four lanes: one chain of additions would take four times
// as long.
template <typename Sum>
double FisherLoss(const Sum& sum) {
  constexpr size_t kLanes = 4;
  double lanes[kLanes] = {};
  const size_t size = sum.size(), whole = size / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(sum[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (size_t i = whole; i < size; ++i) {
    lanes[0] += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
  }
  const double total = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  return total / 2 / static_cast<double>(std::max<size_t>(1, size));
}

template <typename Sum>
double GroupLoss(LossKind kind, const RunRows& run, uint32_t group, const Sum& sum) {
  if (kind == LossKind::kSensitivity) return CosineLoss(run, group, sum);
  if (IsFisher(kind)) return FisherLoss(sum);
  double error2 = 0;
  for (size_t i = 0; i < sum.size(); ++i) error2 += static_cast<double>(sum[i]);
  return error2 / std::max(run.norm2_sum, kLeastNorm2);
}

// Returns the loss of each option of a unit alone: its squared error, scaled by the ratio of loss
// to squared error over all options together.
std::vector<double> LossesAlone(const Unit& unit, size_t run) {
  std::vector<double> losses(unit.options.size());
  double loss = 0, error2 = 0;
  for (size_t o = 0; o < losses.size(); ++o) {
    const Option& option = unit.options[o];
    if (option.effect[run].empty()) continue;
    loss += FisherLoss(std::span(option.effect[run]));
    for (const float of_row : option.error2[run]) losses[o] += static_cast<double>(of_row);
    error2 += losses[o];
  }
  for (double& of_option : losses) of_option *= error2 > 0 ? loss / error2 : 0;
  return losses;
}

// Returns the summed effects of a choice, [group][channel x row].
std::vector<std::vector<double>> Sums(const Measured& measured, const Choice& choice, size_t run) {
  const RunRows& rows = measured.runs[run];
  std::vector<std::vector<double>> sums(measured.groups,
                                        std::vector<double>(rows.channels * rows.rows));
  for (size_t u = 0; u < measured.units.size(); ++u) {
    const Effect& effect = measured.units[u].options[choice[u]].effect[run];
    KV_ASSERT(effect.empty() || effect.size() == rows.channels * rows.rows);
    std::vector<double>& sum = sums[measured.units[u].group];
    for (size_t i = 0; i < effect.size(); ++i) sum[i] += static_cast<double>(effect[i]);
  }
  return sums;
}

// Returns the standard error of the loss over the rows, which are a random sample.
double StandardError(const Measured& measured, const RunRows& run,
                     const std::vector<std::vector<double>>& sums, double loss) {
  ClusterError error;
  const double scale = static_cast<double>(run.rows) / std::max(run.norm2_sum, kLeastNorm2);
  for (uint64_t row = 0; row < run.rows; ++row) {
    RunRows one;
    one.rows = 1;
    one.channels = run.channels;
    one.weight = run.weight;
    double value = 0;
    for (uint32_t group = 0; group < measured.groups; ++group) {
      std::vector<double> of_row;
      for (uint64_t c = 0; c < run.channels; ++c) of_row.push_back(sums[group][c * run.rows + row]);
      if (measured.kind == LossKind::kOutput) {
        // Linearises a ratio of sums: each row contributes its error minus the loss times its norm.
        value += scale * (of_row[0] - loss * static_cast<double>(run.norm2[group][row]));
        continue;
      }
      one.norm2.assign(measured.groups, {});
      if (!run.norm2.empty()) one.norm2[group] = {run.norm2[group][row]};
      value += GroupLoss(measured.kind, one, group, of_row);
    }
    error.Add(row, value);
  }
  return error.Get(run.rows, std::max(run.population, run.rows));
}

double AverageLoss(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double LargestLoss(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

std::string_view Name(LossKind kind) {
  switch (kind) {
    case LossKind::kFisher:
    case LossKind::kFisherEvicted:
    case LossKind::kFisherBoth:
      return "gradients";
    case LossKind::kSensitivity:
      return "sensitivity";
    case LossKind::kOutput:
      return "output-error";
  }
  return "?";
}

bool IsFisher(LossKind kind) { return kind != LossKind::kSensitivity && kind != LossKind::kOutput; }

double SumNorm2(const RunRows& run) {
  double sum = 0;
  for (const auto& of_group : run.norm2) {
    for (const float norm2 : of_group) sum += static_cast<double>(norm2);
  }
  return sum;
}

Measured OfRuns(const Measured& measured, const std::vector<size_t>& runs) {
  Measured part{measured.kind, measured.groups, {}, {}, measured.independent};
  for (const size_t run : runs) part.runs.push_back(measured.runs[run]);
  for (const Unit& unit : measured.units) {
    part.units.push_back({unit.layer, unit.kv_head, unit.group, {}});
    for (const Option& option : unit.options) {
      Option& some = part.units.back().options.emplace_back();
      some.candidate = option.candidate;
      for (const size_t run : runs) {
        some.kept.push_back(option.kept[run]);
        some.held.push_back(option.held[run]);
        some.effect.push_back(option.effect[run]);
        if (!option.error2.empty()) some.error2.push_back(option.error2[run]);
      }
    }
  }
  return part;
}

void KeepRows(const std::vector<uint64_t>& some, size_t run, Measured& measured) {
  const uint64_t rows = measured.runs[run].rows;
  for (Unit& unit : measured.units) {
    for (Option& option : unit.options) {
      option.effect[run] = Select(option.effect[run], rows, some);
      if (!option.error2.empty()) option.error2[run] = Select(option.error2[run], rows, some);
    }
  }
  measured.runs[run] = Select(measured.runs[run], some);
}

Measured InHalves(const Measured& measured) {
  Measured halves{measured.kind, measured.groups, {}, {}, measured.independent};
  std::vector<std::pair<size_t, std::vector<uint64_t>>> parts;  // index of a run, and its rows
  for (size_t run = 0; run < measured.runs.size(); ++run) {
    const uint64_t rows = measured.runs[run].rows;
    for (const bool second : {false, true}) {
      std::vector<uint64_t> half(second ? rows - rows / 2 : rows / 2);
      std::iota(half.begin(), half.end(), second ? rows / 2 : 0);
      parts.emplace_back(run, std::move(half));
    }
  }
  for (const auto& [run, half] : parts) halves.runs.push_back(Select(measured.runs[run], half));
  for (const Unit& unit : measured.units) {
    halves.units.push_back({unit.layer, unit.kv_head, unit.group, {}});
    for (const Option& option : unit.options) {
      Option& cut = halves.units.back().options.emplace_back();
      cut.candidate = option.candidate;
      for (const auto& [run, half] : parts) {
        cut.kept.push_back(option.kept[run]);
        cut.held.push_back(option.held[run]);
        cut.effect.push_back(Select(option.effect[run], measured.runs[run].rows, half));
        if (option.error2.empty()) continue;
        cut.error2.push_back(Select(option.error2[run], measured.runs[run].rows, half));
      }
    }
  }
  return halves;
}

double Outcome::mean_loss() const { return AverageLoss(loss); }
double Outcome::worst_loss() const { return LargestLoss(loss); }
double Outcome::mean_share() const { return AverageLoss(kept_share); }
double Outcome::worst_share() const { return LargestLoss(kept_share); }

double Outcome::mean_ratio() const { return 1 / AverageLoss(held_share); }

double Outcome::median_loss() const {
  std::vector<double> sorted = loss;
  if (sorted.empty()) return 0;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

std::shared_ptr<const Mixture::Tables> Mixture::MakeTables(const Measured& measured) {
  auto tables = std::make_shared<Tables>();
  for (const Unit& unit : measured.units) {
    std::vector<double>& shares = tables->share.emplace_back(unit.options.size());
    for (size_t o = 0; o < unit.options.size(); ++o) {
      for (const double kept : unit.options[o].kept) {
        shares[o] += kept / static_cast<double>(measured.runs.size());
      }
    }
  }
  for (size_t run = 0; run < measured.runs.size(); ++run) {
    auto& alone = tables->alone.emplace_back();
    for (const Unit& unit : measured.units) {
      alone.emplace_back(measured.independent == 0 ? std::vector<double>(unit.options.size())
                                                   : LossesAlone(unit, run));
    }
  }
  return tables;
}

Mixture::Mixture(const Measured& measured, Choice choice)
    : measured_(measured), tables_(MakeTables(measured)), choice_(std::move(choice)) {
  KV_ASSERT(choice_.size() == measured.units.size() && !measured.runs.empty());
  KV_ASSERT(measured.independent == 0 || IsFisher(measured.kind));
  for (size_t run = 0; run < measured.runs.size(); ++run) {
    sums_.push_back(Sums(measured, choice_, run));
    std::vector<double>& losses = of_group_.emplace_back();
    for (uint32_t g = 0; g < measured.groups; ++g) {
      losses.push_back(GroupLoss(measured.kind, measured.runs[run], g, sums_[run][g]));
    }
  }
  Recount();
}

void Mixture::Assign(const Mixture& other) {
  KV_ASSERT(&measured_ == &other.measured_);
  tables_ = other.tables_;
  choice_ = other.choice_;
  sums_ = other.sums_;
  of_group_ = other.of_group_;
  alone_ = other.alone_;
  loss_ = other.loss_;
  share_ = other.share_;
}

double Mixture::FindLoss(size_t run) const {
  const double together = std::accumulate(of_group_[run].begin(), of_group_[run].end(), 0.0);
  return (1 - measured_.independent) * together + measured_.independent * alone_[run];
}

void Mixture::Recount() {
  loss_ = share_ = 0;
  const auto runs = static_cast<double>(measured_.runs.size());
  alone_.assign(measured_.runs.size(), 0);
  for (size_t run = 0; run < measured_.runs.size(); ++run) {
    for (size_t u = 0; u < choice_.size(); ++u) alone_[run] += tables_->alone[run][u][choice_[u]];
    loss_ += FindLoss(run) / runs;
    share_ += measured_.runs[run].fixed_kept / runs;
  }
  for (size_t u = 0; u < choice_.size(); ++u) share_ += tables_->share[u][choice_[u]];
}

double Mixture::worst_loss() const {
  double worst = 0;
  for (size_t run = 0; run < of_group_.size(); ++run) worst = std::max(worst, FindLoss(run));
  return worst;
}

Mixture::Change Mixture::Try(size_t unit, uint32_t option) const {
  const Unit& of = measured_.units[unit];
  const uint32_t now = choice_[unit];
  Change change{0, tables_->share[unit][option] - tables_->share[unit][now]};
  for (size_t run = 0; run < measured_.runs.size(); ++run) {
    const std::vector<double>& alone = tables_->alone[run][unit];
    change.loss += measured_.independent * (alone[option] - alone[now]);
    if (measured_.independent == 1) continue;
    const GroupSum changed(sums_[run][of.group], of.options[now].effect[run],
                           of.options[option].effect[run]);
    const double together = GroupLoss(measured_.kind, measured_.runs[run], of.group, changed) -
                            of_group_[run][of.group];
    change.loss += (1 - measured_.independent) * together;
  }
  change.loss /= static_cast<double>(measured_.runs.size());
  return change;
}

void Mixture::Take(size_t unit, uint32_t option) {
  const Unit& of = measured_.units[unit];
  for (size_t run = 0; run < measured_.runs.size(); ++run) {
    std::vector<double>& sum = sums_[run][of.group];
    const GroupSum changed(sum, of.options[choice_[unit]].effect[run],
                           of.options[option].effect[run]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = changed[i];
    of_group_[run][of.group] = GroupLoss(measured_.kind, measured_.runs[run], of.group, sum);
  }
  choice_[unit] = option;
  Recount();
}

Outcome Mixture::Evaluate(const Measured& measured, const Choice& choice) {
  KV_ASSERT(choice.size() == measured.units.size());
  Outcome outcome;
  for (size_t run = 0; run < measured.runs.size(); ++run) {
    const RunRows& rows = measured.runs[run];
    const auto sums = Sums(measured, choice, run);
    double loss = 0, kept = rows.fixed_kept, held = rows.fixed_held;
    for (uint32_t g = 0; g < measured.groups; ++g) {
      loss += GroupLoss(measured.kind, rows, g, sums[g]);
    }
    for (size_t u = 0; u < choice.size(); ++u) {
      kept += measured.units[u].options[choice[u]].kept[run];
      held += measured.units[u].options[choice[u]].held[run];
    }
    outcome.loss.push_back(loss);
    outcome.standard_error.push_back(StandardError(measured, rows, sums, loss));
    outcome.kept_share.push_back(kept);
    outcome.held_share.push_back(held);
  }
  return outcome;
}

}  // namespace kv::advise
