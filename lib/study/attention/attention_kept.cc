// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares a cache of which some keys are gone with the whole one (attention.h).
#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/core/base/error.h"
#include "lib/study/attention/attention_rows.h"

namespace kv {
namespace {

// Rows of doubles, filled a tile at a time.
using FillTile = std::function<void(uint64_t begin, uint64_t count, std::span<double> out)>;

// Jensen-Shannon divergence when P' is P cut to a share `mass` and renormalised.
double JsOfSubset(double mass) {
  if (mass <= 0) return std::log(2.0);
  if (mass >= 1) return 0;
  return 0.5 * ((1 - mass) * std::log(2.0) + mass * std::log(2 * mass / (1 + mass)) +
                std::log(2 / (1 + mass)));
}

// Row `row` of the metrics of a kept subset, and P - P' in `difference`. False if nothing is lost:
// `difference` is 0 then.
bool KeptRow(std::span<const double> p, KeptBefore kept_before, int64_t position,
             std::span<const uint32_t> largest, uint64_t row, AttentionRows& out,
             float* difference) {
  const auto is_kept = [&](size_t j) { return int64_t{kept_before[j]} > position; };
  TopKKept(largest, is_kept, row, out);
  double mass = 0;
  bool evicting = false;
  for (size_t j = 0; j < p.size(); ++j) {
    const bool kept = is_kept(j);
    mass += kept ? p[j] : 0.0;
    evicting |= !kept && p[j] > 0;
  }
  out.changed_mass[row] = 1;
  out.evicting[row] = evicting;
  if (!evicting) {
    out.mass[row] = 1;
    out.kl[row] = out.js[row] = 0;
    std::fill_n(difference, p.size(), 0.0f);
    return false;
  }
  out.mass[row] = mass;
  out.kl[row] = -std::log(mass);
  out.js[row] = JsOfSubset(mass);
  const double kept_factor = mass > 0 ? 1 - 1 / mass : 1;
  for (size_t j = 0; j < p.size(); ++j) {
    difference[j] = static_cast<float>(is_kept(j) ? p[j] * kept_factor : p[j]);
  }
  return true;
}

// Several kept sets against the same rows.
class KeptComparison {
 public:
  KeptComparison(uint64_t rows, uint64_t keys, const FloatMatrix& v,
                 std::span<const KeptBefore> sets, OutputGradients gradients)
      : rows_(rows),
        keys_(keys),
        v_(v),
        sets_(sets),
        gradients_(gradients),
        largest_(kAttentionTileRows),
        states_(kAttentionTileRows) {
    KV_ASSERT(v.empty() || v.rows == keys);
    SetAsideBadValues();
    for (const KeptBefore& set : sets) {
      KV_ASSERT(set.size() == keys);
      out_.push_back(MakeRows(rows, !v.empty(), gradients.size()));
    }
  }

  std::vector<AttentionRows> Run(const FillTile& fill, std::span<const int64_t> positions) {
    for (uint64_t begin = 0; begin < rows_; begin += kAttentionTileRows) {
      const uint64_t count = std::min(kAttentionTileRows, rows_ - begin);
      p_.resize(count * keys_);
      fill(begin, count, p_);
      Narrow(p_, narrow_);
      if (!v_.empty()) Outputs(narrow_, count, v_, o_);
      for (uint64_t i = 0; i < count; ++i) {
        LargestKeys(Row(i), largest_[i]);
        states_[i] = StateOf(Row(i));
      }
      for (size_t set = 0; set < sets_.size(); ++set) RunSet(set, begin, count, positions);
    }
    return std::move(out_);
  }

 private:
  enum class State : uint8_t { kMeasured, kNoOutput, kUndefined };

  std::span<const double> Row(uint64_t i) const { return {&p_[i * keys_], keys_}; }

  // NaN or Inf in V spoils the rows that see it. In a product it would spoil all rows, as 0 * NaN
  // is NaN: such rows of V become 0 there.
  void SetAsideBadValues() {
    for (uint64_t j = 0; j < v_.rows; ++j) {
      const float* row = v_.row(j);
      if (!std::all_of(row, row + v_.columns, [](float x) { return std::isfinite(x); })) {
        bad_values_.push_back(j);
      }
    }
    if (bad_values_.empty()) return;
    for (uint64_t j = 0; j < v_.rows; ++j) {
      good_values_.insert(good_values_.end(), v_.row(j), v_.row(j) + v_.columns);
    }
    for (const uint64_t j : bad_values_) {
      std::fill_n(&good_values_[j * v_.columns], v_.columns, 0.0f);
    }
    v_ = MatrixOf(good_values_, v_.rows, v_.columns);
  }

  State StateOf(std::span<const double> row) const {
    if (HasNan(row)) return State::kUndefined;
    const bool sees_bad =
        std::any_of(bad_values_.begin(), bad_values_.end(), [&](uint64_t j) { return row[j] > 0; });
    return sees_bad ? State::kNoOutput : State::kMeasured;
  }

  void RunSet(size_t set, uint64_t begin, uint64_t count, std::span<const int64_t> positions) {
    AttentionRows& out = out_[set];
    bool any_lost = false;
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t position = positions.empty() ? UINT32_MAX - 1 : positions[begin + i];
      any_lost |=
          KeptRow(Row(i), sets_[set], position, largest_[i], begin + i, out, &narrow_[i * keys_]);
    }
    // The difference goes through the GEMM itself: its rounding is relative to the error, and keys
    // that change nothing contribute exactly nothing.
    if (any_lost && !v_.empty()) Outputs(narrow_, count, v_, e_);
    if (!any_lost) e_.assign(o_.size(), 0.0f);
    for (uint64_t i = 0; i < count; ++i) {
      if (!v_.empty()) {
        StoreOutput(&o_[i * v_.columns], &e_[i * v_.columns], v_.columns, gradients_, begin + i,
                    out);
      }
      if (states_[i] == State::kUndefined) StoreUndefined(begin + i, out);
      if (states_[i] == State::kNoOutput) StoreUndefinedOutput(begin + i, out);
    }
  }

  uint64_t rows_, keys_;
  FloatMatrix v_;
  std::vector<uint64_t> bad_values_;
  std::vector<float> good_values_;
  std::span<const KeptBefore> sets_;
  OutputGradients gradients_;
  std::vector<AttentionRows> out_;
  std::vector<double> p_;
  std::vector<float> narrow_, o_, e_;
  std::vector<std::vector<uint32_t>> largest_;
  std::vector<State> states_;
};

}  // namespace

std::vector<AttentionRows> CompareKeptSets(const HeadQueries& queries, const HeadCache& full,
                                           std::span<const KeptBefore> sets,
                                           const AttentionRule& rule, OutputGradients gradients) {
  const auto fill = [&](uint64_t begin, uint64_t count, std::span<double> out) {
    AttentionProbabilities(queries, full, rule, begin, count, out);
  };
  return KeptComparison(queries.q.rows, full.k.rows, full.v, sets, gradients)
      .Run(fill, queries.positions);
}

std::vector<AttentionRows> CompareKeptSetsProbabilities(const FloatMatrix& probabilities,
                                                        std::span<const int64_t> positions,
                                                        const FloatMatrix& v,
                                                        std::span<const KeptBefore> sets,
                                                        OutputGradients gradients) {
  const uint64_t keys = probabilities.columns;
  const auto fill = [&](uint64_t begin, uint64_t count, std::span<double> out) {
    for (uint64_t i = 0; i < count; ++i) {
      std::copy_n(probabilities.row(begin + i), keys, &out[i * keys]);
    }
  };
  return KeptComparison(probabilities.rows, keys, v, sets, gradients).Run(fill, positions);
}

}  // namespace kv
