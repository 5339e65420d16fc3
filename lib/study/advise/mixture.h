// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

// The search for a plan, apart from caches and traces: what each option does to each part of the
// model is measured once, and any mixture of options is then a matter of adding vectors.

namespace kv::advise {

// What a loss is computed from, best first.
enum class LossKind {
  kFisher,       // nats, from gradients: 1/2 mean of (sum over units of g.do)^2
  kSensitivity,  // nats, from weights: sum over layers of weight * 2 * (1 - mean cosine)
  kOutput,       // relative error of the attention outputs, Frobenius over rows and layers
};
std::string_view Name(LossKind kind);

// What an option does to a unit, in one run. Effects of the units of a group add up row by row.
// Layout [channel][row]:
//   kFisher       one channel per sampled token: g.do
//   kSensitivity  o.o' - o.o, then o'.o' - o.o
//   kOutput       |o - o'|^2
using Effect = std::vector<float>;

// An option: a part of the model keeps what one candidate keeps there.
struct Option {
  uint32_t candidate = 0;
  // [run]: bytes of K and V held, as shares of those of the whole model: at the end, and over all
  // decode steps together.
  std::vector<double> kept, held;
  std::vector<Effect> effect;  // [run]; empty: none, as of an option that keeps everything
  // Of kFisher: [run][row] |o' - o|^2, by which the noise of few sampled tokens is smoothed.
  std::vector<std::vector<float>> error2;
  uint32_t drops_first = 0;  // runs in which the first token goes
};

// A part of the model that chooses on its own: a layer, or one of its kv heads.
struct Unit {
  uint32_t layer = 0, kv_head = 0;
  uint32_t group = 0;
  std::vector<Option> options;  // the first keeps everything
};

// What all options share in one run: one prompt, or some rows of it.
struct RunRows {
  uint64_t rows = 0, channels = 1;
  uint64_t population = 0;                // rows that these are a sample of
  double fixed_kept = 0, fixed_held = 0;  // shares of layers that cannot be chosen for
  std::vector<std::vector<float>> norm2;  // [group][row]: o.o; empty for kFisher
  double norm2_sum = 0;                   // of all of these
  std::vector<double> weight;             // [group]: for kSensitivity
};

// Everything that was measured. The search depends on nothing else.
struct Measured {
  LossKind kind = LossKind::kOutput;
  uint32_t groups = 1;
  std::vector<RunRows> runs;
  std::vector<Unit> units;
  // Of kFisher, while plans are searched for: the share of the loss in which the effects of units
  // count as independent, each as its squared error times a weight that the unit has over all its
  // options. Among many options and units a search finds some that do little, or cancel each other,
  // in the rows and tokens that were drawn alone.
  double independent = 0;
};

// Sums up norm2 in index order.
double SumOfNorm2(const RunRows& run);
// Returns what was measured in some of the runs.
Measured OfRuns(const Measured& measured, const std::vector<size_t>& runs);
// Leaves only these rows of a run, ascending, as if no others had been measured.
void KeepRows(const std::vector<uint64_t>& some, size_t run, Measured& measured);
// Returns the same with each run cut at its middle row into two.
Measured InHalves(const Measured& measured);

// Which option each unit takes.
using Choice = std::vector<uint32_t>;

// What a choice costs and holds.
struct Outcome {
  std::vector<double> loss;            // [run]
  std::vector<double> standard_error;  // [run]: of the loss, where its rows are a sample
  // [run]: bytes held of those of the whole cache, at the end and over all decode steps.
  std::vector<double> kept_share, held_share;

  double mean_loss() const;
  double worst_loss() const;
  double median_loss() const;
  double mean_share() const;
  double worst_share() const;  // the largest
  double ratio() const { return 1 / mean_share(); }
  double mean_ratio() const;  // over all decode steps, which the losses are means of
};

// A choice, with the sums that make the loss of a neighbouring choice cheap. Losses of kind kOutput
// are squares here: they add up, and their root is the figure that is shown. Losses are those of a
// search, in which units may count as independent; Evaluate tells what was measured.
class Mixture {
 public:
  Mixture(const Measured& measured, Choice choice);
  // Becomes another mixture of the same measurements.
  void Assign(const Mixture& other);

  const Choice& choice() const { return choice_; }
  double loss() const { return loss_; }    // mean of the runs
  double share() const { return share_; }  // mean of the runs
  double worst_loss() const;

  // How loss and share change if the unit takes the option instead.
  struct Change {
    double loss = 0, share = 0;
  };
  Change Try(size_t unit, uint32_t option) const;
  void Take(size_t unit, uint32_t option);

  // Computes everything anew, in double and in the order of the units.
  static Outcome Evaluate(const Measured& measured, const Choice& choice);

 private:
  // What options are by themselves, the same for all mixtures of the same measurements.
  struct Tables {
    std::vector<std::vector<double>> share;               // [unit][option]: mean of the runs
    std::vector<std::vector<std::vector<double>>> alone;  // [run][unit][option]: loss
  };
  static std::shared_ptr<const Tables> MakeTables(const Measured& measured);
  double LossOf(size_t run) const;
  void Recount();

  const Measured& measured_;
  std::shared_ptr<const Tables> tables_;
  Choice choice_;
  std::vector<std::vector<std::vector<double>>> sums_;  // [run][group][channel x row]
  std::vector<std::vector<double>> of_group_;           // [run][group]: losses
  std::vector<double> alone_;                           // [run]: sum of the losses of options alone
  double loss_ = 0, share_ = 0;
};

}  // namespace kv::advise
