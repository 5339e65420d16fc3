// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/panel.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/targets.h"

namespace kv::panel_test {

TEST_CASE("panel: every target adds the same products in the same order", "[kernels]") {
  constexpr size_t kStride = 176, kRows = 20, kSteps = 37;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> out(kStride * kRows), a(4096), b(kStride * (kSteps + 1));
  for (std::vector<float>* all : {&out, &a, &b}) {
    for (float& one : *all) one = normal(random);
  }
  // Strides as regressions use them: forwards and backwards, along rows and columns, and 0.
  const PanelFactors ways[] = {{a.data(), 64, 1, b.data(), kStride, kSteps},
                               {a.data() + kSteps, -1, 64, b.data() + kSteps * kStride,
                                -static_cast<ptrdiff_t>(kStride), kSteps},
                               {a.data(), 0, 64, b.data(), kStride, 1},
                               {a.data(), 1, 0, b.data(), kStride, 0}};
  for (const PanelFactors& way : ways) {
    for (const size_t rows : {0, 1, 5, 6, 13, 20}) {
      for (const size_t columns : {16, 48, 160, 176}) {
        std::vector<float> more = out, less = out;
        ref::PanelAdd(more.data(), kStride, rows, columns, way);
        ref::PanelSubtract(less.data(), kStride, rows, columns, way);
        test::ForEachTarget([&](const std::string& target) {
          INFO(target << ' ' << rows << 'x' << columns);
          std::vector<float> sum = out, difference = out;
          PanelAdd(sum.data(), kStride, rows, columns, way);
          PanelSubtract(difference.data(), kStride, rows, columns, way);
          CHECK(std::memcmp(sum.data(), more.data(), sum.size() * sizeof(float)) == 0);
          CHECK(std::memcmp(difference.data(), less.data(), sum.size() * sizeof(float)) == 0);
        });
      }
    }
  }
}

}  // namespace kv::panel_test
