// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lib/study/advise/measured.h"

namespace kv::advise {

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
