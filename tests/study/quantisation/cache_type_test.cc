// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/quantisation/types/cache_type.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "lib/core/base/error.h"
#include "lib/study/quantisation/types/codes.h"

namespace kv::quant {
namespace {

constexpr uint64_t kTokens = 6;
constexpr uint32_t kHeads = 2;

struct Case {
  std::vector<float> values;
  Side side;

  Case(uint32_t dim, bool is_key, float scale)
      : values(kTokens * kHeads * dim), side{values, kTokens, kHeads, dim,
                                             is_key, 5,       10,     DType::kF16} {
    std::mt19937 generator(dim);
    std::normal_distribution<float> normal;
    for (float& value : values) value = scale == 0 ? 0 : normal(generator) * scale;
  }
};

StoreOptions Options(const Rope& rope) { return {.rope = &rope}; }

std::vector<float> Stored(const CacheType& type, const Side& side, const StoreOptions& options,
                          double* bytes = nullptr) {
  std::vector<float> out(side.values.size());
  const double taken = type.store(type, side, options, out);
  if (bytes != nullptr) *bytes = taken;
  return out;
}

}  // namespace

TEST_CASE("every cache type takes fewer bytes than 32 bits a value and keeps zeros") {
  const Rope rope{.pairs = RopePairs::kNeighbours, .theta = 10000};
  for (const CacheType& type : CacheTypes()) {
    for (const bool is_key : {true, false}) {
      INFO(type.name << (is_key ? " K" : " V"));
      const Case zeros(64, is_key, 0), normal(64, is_key, 1);
      for (const float value : Stored(type, zeros.side, Options(rope))) CHECK(value == 0);
      double bytes = 0;
      Stored(type, normal.side, Options(rope), &bytes);
      CHECK(bytes > 0);
      CHECK(bytes < 4.0 * static_cast<double>(normal.values.size()));
    }
  }
}

TEST_CASE("no cache type ends the program on values that are not finite or of another size") {
  const Rope rope{.pairs = RopePairs::kNeighbours, .theta = 10000};
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  for (const CacheType& type : CacheTypes()) {
    for (const bool is_key : {true, false}) {
      for (const float scale : {1e-45f, 1e-30f, 1.0f, 1e30f, 3e38f}) {
        for (const float odd : {0.0f, kInfinite, -kInfinite, std::nanf("")}) {
          Case given(64, is_key, scale);
          given.values[70] = odd;
          CHECK(Stored(type, given.side, Options(rope)).size() == given.values.size());
        }
      }
      for (const uint32_t dim : {2u, 8u, 24u, 32u, 80u, 96u, 128u}) {
        INFO(type.name << ", heads of " << dim);
        const Case given(dim, is_key, 1);
        try {
          const std::vector<float> out = Stored(type, given.side, Options(rope));
          CHECK(out.size() == given.values.size());
        } catch (const Error& error) {
          CHECK(error.finding() == Finding::kUnsupportedKind);
        }
      }
    }
  }
}

TEST_CASE("transformers' fp8 keeps the scale of the tokens stored first") {
  Case given(8, false, 1);
  for (uint64_t i = 0; i < given.values.size(); ++i)
    given.values[i] = i < 2 * given.side.row() ? 1.0f : 1.5f;
  const CacheType& type = ParseCacheType("transformers_fp8", "test");
  const std::vector<float> all = Stored(type, given.side, {});
  CHECK(std::ranges::none_of(all, [](float value) { return std::isnan(value); }));
  const std::vector<float> first = Stored(type, given.side, {.first_tokens = 2});
  CHECK(std::ranges::count_if(first, [](float value) { return std::isnan(value); }) ==
        static_cast<std::ptrdiff_t>(4 * given.side.row()));
  CHECK(first.front() == 1.0f);
  // If the prompt is longer than the cache, the whole cache determines the scale.
  CHECK(Stored(type, given.side, {.first_tokens = 100}) == all);
}

TEST_CASE("ultraquant rounds ties down, and scales go by half binary places") {
  std::vector<float> values(kUltraGroup, 0.0f), out(kUltraGroup);
  values[0] = 6, values[1] = 0.25f, values[2] = -0.25f, values[3] = 5, values[4] = -5;
  ReadUltra(StoreUltra(values, kUltraGroup, false), out);  // 0.156 * 6 is nearest to 1
  CHECK(std::vector<float>(out.begin(), out.begin() + 5) == std::vector<float>{6, 0, -0.5f, 4, -6});
  for (const int exponent : {-140, -60, 0, 60, 126}) {
    values.assign(kUltraGroup, std::ldexp(1.0f, exponent));
    const UltraCodes stored = StoreUltra(values, kUltraGroup, false);
    ReadUltra(stored, out);
    // The scale is an eighth of a power of two, and the largest code is 6.
    if (exponent > -120) CHECK(out[0] == 0.75f * values[0]);
    CHECK(stored.exponents.size() == 1);
  }
}

TEST_CASE("octave keeps the product of a vector with what is stored of it") {
  const Case given(kOctaveDim, true, 3);
  for (const uint32_t bits : {3u, 4u}) {
    std::vector<float> out(given.values.size());
    ReadOctave(StoreOctave(given.values, bits), bits, out);
    for (size_t i = 0; i < out.size(); i += kOctaveDim) {
      double own = 0, product = 0, error = 0;
      for (size_t d = i; d < i + kOctaveDim; ++d) {
        const double x = given.values[d], y = out[d];
        own += x * x, product += x * y, error += (x - y) * (x - y);
      }
      CHECK(product == Approx(own).epsilon(1e-3));
      CHECK(error < own * (bits == 3 ? 0.08 : 0.03));
    }
  }
}

}  // namespace kv::quant
