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

// The data that a loss is computed from, best first.
enum class LossKind {
  // Predicted KL in nats: half the mean of (sum over units of g.do)^2. The gradients g are taken at
  // recorded states (kFisher), at evicted states, or at both.
  kFisher,
  kFisherEvicted,
  kFisherBoth,
  kSensitivity,  // nats, from weights: sum over layers of weight * 2 * (1 - mean cosine)
  kOutput,       // relative error of the attention outputs, Frobenius over rows and layers
};
std::string_view Name(LossKind kind);
bool IsFisher(LossKind kind);

// The effect of an option on a unit, in one run. Effects of the units of a group add up row by row.
// Layout [channel][row]:
//   kFisher...    one channel per sampled token: g.do, times the root of the token's weight in the
//                 mean over channels
//   kSensitivity  o.o' - o.o, then o'.o' - o.o
//   kOutput       |o - o'|^2
using Effect = std::vector<float>;

// An option: a part of the model keeps the tokens that one candidate keeps there.
struct Option {
  uint32_t candidate = 0;
  // [run]: bytes of K and V that this part holds, as shares of the whole model's: `kept` at the end
  // of the run, `held` summed over all decode steps.
  std::vector<double> kept, held;
  std::vector<Effect> effect;  // [run]; empty for an option that keeps everything
  // For gradients, [run][row]: |o' - o|^2, which smooths the noise of few sampled tokens.
  std::vector<std::vector<float>> error2;
  uint32_t drops_first = 0;  // runs in which the first token is evicted
};

// A part of the model that chooses independently: a layer, or one of its kv heads.
struct Unit {
  uint32_t layer = 0, kv_head = 0;
  uint32_t group = 0;
  std::vector<Option> options;  // the first keeps everything
};

// Data that all options share in one run: one prompt, or some rows of it.
struct RunRows {
  uint64_t rows = 0, channels = 1;
  uint64_t population = 0;                // number of rows from which these were drawn
  double fixed_kept = 0, fixed_held = 0;  // shares of layers that have no options
  std::vector<std::vector<float>> norm2;  // [group][row]: o.o; empty for gradients
  double norm2_sum = 0;                   // sum of all norm2
  std::vector<double> weight;             // [group]: for kSensitivity
};

// All measurements. The search depends on nothing else.
struct Measured {
  LossKind kind = LossKind::kOutput;
  uint32_t groups = 1;
  std::vector<RunRows> runs;
  std::vector<Unit> units;
  // For gradients during the search: the share of the loss in which the effects of units count as
  // independent, each as its squared error times a weight per unit. Without it, a search over many
  // options picks those that by chance do little, or cancel each other, in the sampled rows and
  // tokens.
  double independent = 0;
};

// Sums up norm2 in index order.
double SumNorm2(const RunRows& run);
// Returns the measurements of some of the runs.
Measured OfRuns(const Measured& measured, const std::vector<size_t>& runs);
// Keeps only these rows of a run, ascending, as if the others had not been measured.
void KeepRows(const std::vector<uint64_t>& some, size_t run, Measured& measured);
// Returns the same measurements with each run split at its middle row into two.
Measured InHalves(const Measured& measured);

// The option that each unit takes.
using Choice = std::vector<uint32_t>;

// Cost and size of a choice.
struct Outcome {
  std::vector<double> loss;            // [run]
  std::vector<double> standard_error;  // [run]: that of the loss, if the rows are a sample
  // [run]: bytes held as a share of the whole cache, at the end and summed over all decode steps.
  std::vector<double> kept_share, held_share;

  double mean_loss() const;
  double worst_loss() const;
  double median_loss() const;
  double mean_share() const;
  double worst_share() const;  // share in the run that needs most
  double ratio() const { return 1 / mean_share(); }
  double mean_ratio() const;  // mean over all decode steps, as losses are
};

// A choice, with the sums that make the loss of a neighbouring choice cheap to compute. Losses of
// kind kOutput are squares here, because squares add up; users see their root. These are the losses
// of a search, in which units may count as independent; Evaluate returns the measured ones.
class Mixture {
 public:
  Mixture(const Measured& measured, Choice choice);
  // Becomes another mixture of the same measurements.
  void Assign(const Mixture& other);

  const Choice& choice() const { return choice_; }
  double loss() const { return loss_; }    // mean of the runs
  double share() const { return share_; }  // mean of the runs
  double worst_loss() const;

  // Change of loss and share if the unit takes this option instead.
  struct Change {
    double loss = 0, share = 0;
  };
  Change Try(size_t unit, uint32_t option) const;
  void Take(size_t unit, uint32_t option);

  // Computes the outcome from scratch, in double and in the order of the units.
  static Outcome Evaluate(const Measured& measured, const Choice& choice);

 private:
  // Per-option figures. They depend only on the measurements, so all mixtures share them.
  struct Tables {
    std::vector<std::vector<double>> share;               // [unit][option]: mean of the runs
    std::vector<std::vector<std::vector<double>>> alone;  // [run][unit][option]: loss
  };
  static std::shared_ptr<const Tables> MakeTables(const Measured& measured);
  double FindLoss(size_t run) const;
  void Recount();

  const Measured& measured_;
  std::shared_ptr<const Tables> tables_;
  Choice choice_;
  std::vector<std::vector<std::vector<double>>> sums_;  // [run][group][channel x row]
  std::vector<std::vector<double>> of_group_;           // [run][group]: losses
  std::vector<double> alone_;                           // [run]: losses of single options, added
  double loss_ = 0, share_ = 0;
};

}  // namespace kv::advise
