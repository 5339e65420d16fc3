// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formats/tensors/tensor_names.h"

namespace kv::token_axis_test {
namespace {

struct Cache {
  uint64_t tokens, heads, dim;
  std::vector<float> values;

  float* Row(uint64_t token, uint64_t head) { return &values[(token * heads + head) * dim]; }
};

// Draws rows around a mean per head; `structure` is the weight of the mean.
Cache Make(uint64_t tokens, uint64_t heads, uint64_t dim, float structure, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Cache cache{tokens, heads, dim, std::vector<float>(tokens * heads * dim)};
  std::vector<float> means(heads * dim);
  for (float& value : means) value = structure * normal(random);
  for (uint64_t t = 0; t < tokens; ++t) {
    for (uint64_t i = 0; i < heads * dim; ++i)
      cache.values[t * heads * dim + i] = means[i] + normal(random);
  }
  return cache;
}

TensorView View(const Cache& cache, bool heads_first = false) {
  TensorView view = ContiguousView(DType::kF32, {cache.tokens, cache.heads, cache.dim},
                                   reinterpret_cast<const std::byte*>(cache.values.data()));
  if (heads_first) {
    std::swap(view.shape[0], view.shape[1]);
    std::swap(view.strides[0], view.strides[1]);
  }
  return view;
}

TEST_CASE("the axis along which rows of a head resemble each other counts tokens") {
  struct Shape {
    uint64_t tokens, heads, dim;
  };
  for (const auto& [tokens, heads, dim] : {Shape{16, 4, 64}, Shape{64, 2, 64}, Shape{300, 8, 36},
                                           Shape{16, 32, 128}, Shape{2000, 1, 16}}) {
    INFO(tokens << " tokens, " << heads << " heads");
    const Cache cache = Make(tokens, heads, dim, 1.0F);
    CHECK(FindTokenAxis(View(cache)).axis() == 0);
    CHECK(FindTokenAxis(View(cache, true)).axis() == 1);
    CHECK(FindTokenAxis(View(cache)).margin() == Approx(FindTokenAxis(View(cache, true)).margin()));
  }
}

TEST_CASE("what has no structure is ambiguous") {
  int decided = 0;
  for (unsigned seed = 0; seed < 100; ++seed)
    decided += FindTokenAxis(View(Make(64, 4, 16, 0, seed))).axis().has_value();
  CHECK(decided <= 6);  // at 2.25 standard errors, chance decides 2.4 of 100 on average
  Cache same = Make(16, 4, 8, 0);
  std::fill(same.values.begin(), same.values.end(), 3.0F);
  CHECK(FindTokenAxis(View(same)).log_ratio == 0);
  CHECK_FALSE(FindTokenAxis(View(same)).axis());
}

TEST_CASE("scale, zeros, NaN and Inf change nothing") {
  Cache cache = Make(64, 4, 32, 1.0F);
  const double margin = FindTokenAxis(View(cache)).margin();
  Cache scaled = cache;
  for (float& value : scaled.values) value *= 1024;
  CHECK(FindTokenAxis(View(scaled)).margin() == Approx(margin));
  // A static cache has rows that are not written yet, and others that a faulty model wrote.
  Cache padded = Make(256, 4, 32, 1.0F);
  std::fill(padded.Row(64, 0), padded.Row(255, 3) + 32, 0.0F);
  padded.Row(3, 1)[0] = std::numeric_limits<float>::quiet_NaN();
  padded.Row(5, 2)[7] = std::numeric_limits<float>::infinity();
  CHECK(FindTokenAxis(View(padded)).axis() == 0);
  CHECK(std::isfinite(FindTokenAxis(View(padded)).log_ratio));
}

TEST_CASE("what cannot be compared is not measured") {
  Cache cache = Make(8, 4, 16, 0);
  std::fill(cache.values.begin(), cache.values.end(), 0.0F);
  CHECK_FALSE(FindTokenAxis(View(cache)).is_measured);
  TensorView integers = View(cache);
  integers.dtype = DType::kI32;
  CHECK_FALSE(FindTokenAxis(integers).is_measured);
  TensorView empty = View(cache);
  empty.shape[0] = 0;
  CHECK_FALSE(FindTokenAxis(empty).is_measured);
  CHECK(TokenAxis().margin() == 0);
  CHECK_FALSE(TokenAxis().axis());
}

TEST_CASE("evidence of several tensors adds up") {
  TokenAxis all;
  for (unsigned seed = 0; seed < 8; ++seed)
    all.Add(FindTokenAxis(View(Make(16, 4, 16, 0.3F, seed), true)));
  CHECK(all.axis() == 1);
  CHECK(all.margin() > FindTokenAxis(View(Make(16, 4, 16, 0.3F))).margin());
}

}  // namespace
}  // namespace kv::token_axis_test
