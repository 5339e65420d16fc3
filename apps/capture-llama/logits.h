// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Distributions of the next token, and how far two of them differ.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kv::capture {

// Converts logits to log probabilities in place; sums are in double. Throws Failure(kInvalid) for
// NaN or +infinity, which a broken model produces.
void ToLogProbabilities(std::span<float> logits);

// Returns the indices of the k largest values, largest first; of equal ones the lowest index comes
// first.
std::vector<int32_t> Largest(std::span<const float> values, size_t k);

// The effect of a change of the cache on the distributions of the next token.
class Comparison {
 public:
  // Adds the log probabilities of one row in the full run and in the changed one; `next` is the
  // token that follows, or negative if none does.
  void Add(std::span<const float> full, std::span<const float> changed, int32_t next);

  size_t rows() const { return divergences_.size(); }
  double kl() const;                 // mean of KL(full || changed) over rows, in nats
  double kl_standard_error() const;  // standard error of kl(), if rows are independent
  double delta_nll() const;          // mean over the rows with a next token; NaN if there are none
  double agreement() const;          // share of rows with the same likeliest token
  std::string Line(const std::string& what, const std::string& by) const;  // as JSON

 private:
  std::vector<double> divergences_;
  double delta_nll_ = 0;
  size_t followed_ = 0, agreeing_ = 0;
};

// Log probabilities of the rows from `first` on, in contiguous memory.
class Distributions {
 public:
  Distributions(int32_t first, int32_t words) : first_(first), words_(static_cast<size_t>(words)) {}

  void Add(std::span<const float> logits);
  std::span<const float> Row(int32_t position) const;

 private:
  int32_t first_;
  size_t words_;
  std::vector<float> values_;
};

}  // namespace kv::capture
