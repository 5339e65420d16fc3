// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/layers/block_regression.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/kernels/panel.h"

namespace kv {
namespace {

// Rows before the first solution, and between two of them.
constexpr uint64_t kFirstSolution = 32, kLeastRowsBetween = 16, kMostRowsBetween = 512;
// Rows are added together: the sums then pass through the cache but once.
constexpr uint64_t kPendingRows = 64;
// Rows of the factor that are computed together.
constexpr uint64_t kFactorRows = 48;
// How strongly weights are held near 0, always.
constexpr float kTinyBlockRidge = 1e-12f;

uint64_t PaddedToPanel(uint64_t count) {
  return (count + kPanelLanes - 1) / kPanelLanes * kPanelLanes;
}
uint64_t PanelBegin(uint64_t column) { return column / kPanelLanes * kPanelLanes; }

}  // namespace

BlockRegression::BlockRegression(uint64_t taps, uint64_t columns, float ridge, Arena* arena)
    : taps_(taps),
      columns_(columns),
      padded_taps_(PaddedToPanel(taps)),
      padded_columns_(PaddedToPanel(columns)),
      ridge_(ridge),
      width_(padded_taps_ + padded_columns_),
      sums_(taps * width_, 0.0f, arena),
      factor_(taps * width_, 0.0f, arena),
      pending_(kPendingRows * width_, 0.0f, arena),
      roots_(taps, 0.0f, arena),
      weights_(taps * padded_columns_, 0.0f, arena),
      prediction_(padded_columns_, 0.0f, arena),
      next_solution_(kFirstSolution) {
  KV_ASSERT(taps > 0 && taps <= kMaxTaps + 1 && columns <= kMaxColumns);
}

void BlockRegression::Predict(std::span<float> row) {
  float* taps = pending_row();
  taps[taps_ - 1] = 1;
  std::fill(prediction_.begin(), prediction_.end(), 0.0f);
  PanelAdd(prediction_.data(), padded_columns_, 1, padded_columns_,
           {taps, 1, 0, weights_.data(), static_cast<ptrdiff_t>(padded_columns_), taps_});
  std::copy_n(prediction_.begin(), columns_, row.begin());
}

void BlockRegression::Learn(std::span<const float> row) {
  std::copy_n(row.begin(), columns_, pending_row() + padded_taps_);
  ++pending_rows_;
  ++rows_;
  if (rows_ == next_solution_) {
    AddPending();
    Solve();
    next_solution_ += std::clamp(rows_ / 4, kLeastRowsBetween, kMostRowsBetween);
  } else if (pending_rows_ == kPendingRows) {
    AddPending();
  }
}

// Of the taps' products with each other, only those on the diagonal and right of it matter.
void BlockRegression::AddPending() {
  const auto step = static_cast<ptrdiff_t>(width_);
  for (uint64_t first = 0; first < taps_; first += kFactorRows) {
    PanelAdd(Row(sums_, first) + first, width_, std::min(kFactorRows, taps_ - first),
             width_ - first,
             {pending_.data() + first, step, 1, pending_.data() + first, step, pending_rows_});
  }
  pending_rows_ = 0;
}

void BlockRegression::Solve() {
  std::copy(sums_.begin(), sums_.end(), factor_.begin());
  Factor();
  Substitute();
}

// Cholesky's factor, transposed, of the products of taps; those with columns take the same steps.
void BlockRegression::Factor() {
  const auto step = static_cast<ptrdiff_t>(width_);
  const float ridge = ridge_ * static_cast<float>(taps_) / static_cast<float>(rows_);
  for (uint64_t first = 0; first < taps_; first += kFactorRows) {
    const uint64_t end = std::min(first + kFactorRows, taps_);
    // What was added to the diagonal: rounding never leaves less of it.
    const auto least = [&](uint64_t i) { return Row(sums_, i)[i] * ridge + kTinyBlockRidge; };
    for (uint64_t i = first; i < end; ++i) Row(factor_, i)[i] += least(i);
    const float* above = factor_.data() + first;
    PanelSubtract(Row(factor_, first) + first, width_, end - first, width_ - first,
                  {above, step, 1, above, step, first});
    for (uint64_t i = first; i < end; ++i) {
      float* row = Row(factor_, i);
      const float root = roots_[i] = 1.0f / std::sqrt(std::max(row[i], least(i)));
      for (uint64_t column = i; column < width_; ++column) row[column] *= root;
      const uint64_t from = PanelBegin(i + 1);
      if (i + 1 < end) {
        PanelSubtract(Row(factor_, i + 1) + from, width_, end - i - 1, width_ - from,
                      {row + i + 1, step, 1, row + from, step, 1});
      }
    }
  }
}

void BlockRegression::Substitute() {
  const auto step = static_cast<ptrdiff_t>(padded_columns_),
             row_step = static_cast<ptrdiff_t>(width_);
  const auto weights = [&](uint64_t i) { return weights_.data() + i * padded_columns_; };
  for (uint64_t end = taps_; end > 0;) {
    const uint64_t first = (end - 1) / kFactorRows * kFactorRows;
    for (uint64_t i = first; i < end; ++i)
      std::copy_n(Row(factor_, i) + padded_taps_, padded_columns_, weights(i));
    if (end < taps_) {
      PanelSubtract(
          weights(first), padded_columns_, end - first, padded_columns_,
          {Row(factor_, first) + taps_ - 1, -1, row_step, weights(taps_ - 1), -step, taps_ - end});
    }
    for (uint64_t i = end; i-- > first;) {
      float* row = weights(i);
      for (uint64_t column = 0; column < padded_columns_; ++column) row[column] *= roots_[i];
      PanelSubtract(weights(first), padded_columns_, i - first, padded_columns_,
                    {Row(factor_, first) + i, 0, row_step, row, step, 1});
    }
    end = first;
  }
}

}  // namespace kv
