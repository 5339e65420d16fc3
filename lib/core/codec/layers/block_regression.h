// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>

#include "lib/core/base/arena.h"

// Predicts whole rows from other rows of values, by least squares: all columns are regressed on the
// same taps, so that one factorisation serves them all. It learns row by row and solves more and
// more rarely. FORMAT.md in this folder spells out every operation.
namespace kv {

class BlockRegression {
 public:
  static constexpr uint64_t kMaxTaps = 1024, kMaxColumns = 4096;

  // The last tap is 1 in each row. `ridge` says how strongly weights are held near 0, per tap and
  // row.
  BlockRegression(uint64_t taps, uint64_t columns, float ridge, Arena* arena = nullptr);

  // Where the taps of the row to come are put, all but the last.
  std::span<float> taps() { return {pending_row(), taps_ - 1}; }
  // Expects that row, from the rows learned so far.
  void Predict(std::span<float> row);
  // Takes what the row was.
  void Learn(std::span<const float> row);

 private:
  float* pending_row() { return pending_.data() + pending_rows_ * width_; }
  float* Row(ArenaVector<float>& matrix, uint64_t row) { return matrix.data() + row * width_; }
  void AddPending();
  void Solve();
  void Factor();
  void Substitute();

  const uint64_t taps_, columns_, padded_taps_, padded_columns_;
  const float ridge_;
  const uint64_t width_;  // of a row: taps, then columns, each padded with zeros
  // Sums of the products of taps with taps and columns; these, and the rows not yet among them.
  ArenaVector<float> sums_, factor_, pending_;
  ArenaVector<float> roots_;  // inverse roots of the factor's diagonal
  ArenaVector<float> weights_, prediction_;
  uint64_t rows_ = 0, pending_rows_ = 0, next_solution_;
};

}  // namespace kv
