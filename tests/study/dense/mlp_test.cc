// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/dense/mlp.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "lib/core/base/half.h"
#include "tests/support/targets.h"

namespace kv::mlp_test {
namespace {

float Rounded(float value, MlpNumbers numbers) {
  if (numbers == MlpNumbers::kF16) return F16ToF32(F32ToF16(value));
  if (numbers == MlpNumbers::kBF16) return BF16ToF32(F32ToBF16(value));
  return value;
}

struct Shape {
  uint32_t in, hidden, hidden2, out;
};

std::array<MlpLinear, 3> Linears(const Shape& shape, MlpNumbers numbers, bool with_bias,
                                 std::mt19937& random) {
  std::array<MlpLinear, 3> linears;
  const uint32_t sizes[] = {shape.in, shape.hidden, shape.hidden2, shape.out};
  for (size_t i = 0; i < 3; ++i) {
    linears[i].in = sizes[i];
    linears[i].out = sizes[i + 1];
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(sizes[i])));
    linears[i].weight.resize(size_t{sizes[i]} * sizes[i + 1]);
    for (float& w : linears[i].weight) w = Rounded(normal(random), numbers);
    if (with_bias) linears[i].bias.resize(sizes[i + 1]);
    for (float& b : linears[i].bias) b = Rounded(normal(random), numbers);
  }
  return linears;
}

std::vector<float> Inputs(uint64_t count, MlpNumbers numbers, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = Rounded(normal(random), numbers);
  return values;
}

}  // namespace

TEST_CASE("bias and ReLU are the same on every target, NaN included", "[mlp]") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const uint64_t columns : {0u, 1u, 3u, 8u, 17u, 128u, 131u}) {
    for (const uint64_t misalign : {0u, 1u, 3u}) {
      const uint64_t stride = columns + 5;
      std::vector<float> rows(misalign + 3 * stride), bias(columns);
      for (float& value : rows) value = normal(random);
      for (float& value : bias) value = normal(random);
      if (columns > 2) {
        rows[misalign + 1] = std::numeric_limits<float>::quiet_NaN();
        rows[misalign + 2] = -std::numeric_limits<float>::infinity();
      }
      for (const bool relu : {false, true}) {
        for (const float* b :
             {static_cast<const float*>(bias.data()), static_cast<const float*>(nullptr)}) {
          std::vector<float> expected = rows;
          ref::AddBias(expected.data() + misalign, stride, 3, columns, b, relu);
          test::ForEachTarget([&](const std::string& target) {
            INFO(target << " columns " << columns);
            std::vector<float> got = rows;
            AddBias(got.data() + misalign, stride, 3, columns, b, relu);
            REQUIRE(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
          });
        }
      }
    }
  }
}

TEST_CASE("an MLP is what its reference says: near in float, equal in the 16-bit types", "[mlp]") {
  std::mt19937 random(2);
  const Shape shapes[] = {{80, 16, 16, 16}, {8, 6, 5, 4}, {1, 1, 1, 1}, {640, 128, 128, 128}};
  for (const MlpNumbers numbers : {MlpNumbers::kF32, MlpNumbers::kF16, MlpNumbers::kBF16}) {
    for (const Shape& shape : shapes) {
      for (const bool with_bias : {true, false}) {
        const Mlp mlp(Linears(shape, numbers, with_bias, random), numbers);
        const uint64_t rows = 37, x_stride = shape.in + 3, y_stride = shape.out + 1;
        const std::vector<float> x = Inputs(rows * x_stride, numbers, random);
        std::vector<float> y(rows * y_stride, -7), expected(shape.out);
        Mlp::Scratch scratch;
        mlp.RunTile(x.data(), x_stride, rows, y.data(), y_stride, scratch);
        for (uint64_t r = 0; r < rows; ++r) {
          ref::RunMlp(mlp.linears(), numbers, &x[r * x_stride], expected.data());
          for (uint64_t i = 0; i < shape.out; ++i) {
            const float got = y[r * y_stride + i];
            if (numbers == MlpNumbers::kF32) {
              REQUIRE(std::abs(got - expected[i]) < 1e-5f);
            } else {
              REQUIRE(got == expected[i]);
            }
          }
          REQUIRE(y[r * y_stride + shape.out] == -7);  // the gap between rows is not written
        }
      }
    }
  }
}

}  // namespace kv::mlp_test
