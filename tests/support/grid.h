// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"

namespace kv::test {

// Grid is a synthetic cache of one head or more.
struct Grid {
  uint64_t rows = 0, columns = 0, head_dim = 0;
  bool bfloat = false;
  std::vector<float> x;

  float* Row(uint64_t row) { return x.data() + row * columns; }
  Bytes Store() const {
    Bytes values(2 * x.size());
    for (size_t i = 0; i < x.size(); ++i)
      StoreLE(values.data() + 2 * i, bfloat ? F32ToBF16(x[i]) : F32ToF16(x[i]));
    return values;
  }
};

// Gives every channel a mean and a deviation of its own; of ten rows, `again` repeat an earlier row
// with a little noise.
inline Grid MakeGrid(uint64_t rows, uint64_t columns, uint64_t head_dim, bool bfloat,
                     uint32_t again) {
  Grid grid{rows, columns, head_dim, bfloat, std::vector<float>(rows * columns)};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> mean(columns), deviation(columns);
  for (uint64_t c = 0; c < columns; ++c) {
    mean[c] = 2 * normal(random);
    deviation[c] = 0.2f + std::abs(normal(random));
  }
  for (uint64_t row = 0; row < rows; ++row) {
    const float* like = row > 0 && random() % 10 < again ? grid.Row(random() % row) : nullptr;
    for (uint64_t c = 0; c < columns; ++c) {
      grid.Row(row)[c] = like != nullptr ? like[c] + 0.003f * normal(random)
                                         : mean[c] + deviation[c] * normal(random);
    }
  }
  return grid;
}

// Rotates keys as RoPE does; partners are half a head apart or neighbours.
inline void Rotate(Grid& grid, bool neighbours) {
  const uint64_t pairs = grid.head_dim / 2;
  for (uint64_t row = 0; row < grid.rows; ++row) {
    for (uint64_t i = 0; i < grid.columns / 2; ++i) {
      const uint64_t pair = i % pairs, first = i / pairs * grid.head_dim;
      float& a = grid.Row(row)[first + (neighbours ? 2 * pair : pair)];
      float& b = grid.Row(row)[first + (neighbours ? 2 * pair + 1 : pair + pairs)];
      const double angle =
          static_cast<double>(row) *
          std::pow(1e4, -2 * static_cast<double>(pair) / static_cast<double>(grid.head_dim));
      const auto cosine = static_cast<float>(std::cos(angle)),
                 sine = static_cast<float>(std::sin(angle));
      const float turned = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = turned;
    }
  }
}

}  // namespace kv::test
