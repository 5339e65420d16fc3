// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/entropy_models.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "lib/core/base/half.h"

namespace kv::analysis::entropy_models_test {
namespace {

// Rows of f16 or bf16 with values from `value(token, channel)`.
template <typename F>
Bytes Rows(DType dtype, uint64_t tokens, uint64_t channels, F value) {
  Bytes rows(tokens * channels * 2);
  for (uint64_t t = 0; t < tokens; ++t) {
    for (uint64_t c = 0; c < channels; ++c) {
      const float x = value(t, c);
      StoreLE(&rows[(t * channels + c) * 2], dtype == DType::kF16 ? F32ToF16(x) : F32ToBF16(x));
    }
  }
  return rows;
}

std::map<std::string, EntropyModel> ModelsOf(DType dtype, uint64_t tokens, uint64_t channels,
                                             const Bytes& rows, uint64_t step) {
  EntropyModels models(dtype, channels, tokens);
  for (uint64_t t = 0; t < tokens; t += step) {
    const uint64_t count = std::min(step, tokens - t);
    models.Add(ByteSpan(rows).subspan(t * channels * 2, count * channels * 2), count);
  }
  std::map<std::string, EntropyModel> by_name;
  for (const EntropyModel& model : models.Models()) by_name[std::string(model.name)] = model;
  return by_name;
}

// Computes the order-0 entropy of f(pattern) in the simplest way.
template <typename F>
double Entropy(const Bytes& rows, F f) {
  std::map<uint32_t, double> counts;
  const auto n = static_cast<double>(rows.size() / 2);
  for (size_t i = 0; i < rows.size(); i += 2) ++counts[f(LoadLE<uint16_t>(&rows[i]))];
  double bits = 0;
  for (const auto& [symbol, count] : counts) bits -= count / n * std::log2(count / n);
  return bits;
}

}  // namespace

TEST_CASE("order-0 models are the entropies of their fields") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.3f, 2);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const uint32_t m = dtype == DType::kF16 ? 10 : 7;
    const Bytes rows = Rows(dtype, 40, 24, [&](uint64_t, uint64_t) { return normal(random); });
    auto models = ModelsOf(dtype, 40, 24, rows, 7);
    const double low = Entropy(rows, [](uint32_t v) { return v & 255; });
    const double high = Entropy(rows, [](uint32_t v) { return v >> 8; });
    CHECK(models["byte_planes"].bits == Approx(low + high));
    CHECK(models["fields"].bits ==
          Approx(Entropy(rows, [](uint32_t v) { return v >> 15; }) +
                 Entropy(rows, [&](uint32_t v) { return (v & 0x7fff) >> m; }) +
                 Entropy(rows, [&](uint32_t v) { return v & ((1u << m) - 1); })));
    CHECK(models["sign_exponent"].bits ==
          Approx(Entropy(rows, [&](uint32_t v) { return v >> m; }) + m));
    const auto rotated = [](uint32_t v) { return (v << 1 | v >> 15) & 0xffff; };
    CHECK(models["rotated_planes"].bits ==
          Approx(Entropy(rows, [&](uint32_t v) { return rotated(v) & 255; }) +
                 Entropy(rows, [&](uint32_t v) { return rotated(v) >> 8; })));
    CHECK(models["byte_planes"].table_bits > 0);
  }
}

TEST_CASE("models do not depend on how the rows arrive") {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const Bytes rows = Rows(DType::kF16, 1100, 6, [&](uint64_t, uint64_t) { return normal(random); });
  auto whole = ModelsOf(DType::kF16, 1100, 6, rows, 1100);
  auto parts = ModelsOf(DType::kF16, 1100, 6, rows, 37);
  REQUIRE(whole.size() == parts.size());
  for (const auto& [name, model] : whole) {
    INFO(name);
    CHECK(model.bits == parts[name].bits);
    CHECK(model.table_bits == parts[name].table_bits);
  }
}

TEST_CASE("gaussian values cost what theory says, and their own channel's spread helps") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const uint64_t tokens = 4000, channels = 8;
  const Bytes rows = Rows(DType::kF16, tokens, channels, [&](uint64_t, uint64_t c) {
    return static_cast<float>(c % 4 + 1) * normal(random);
  });
  auto models = ModelsOf(DType::kF16, tokens, channels, rows, 512);
  // At any scale, a normal distribution in f16 has about 13.47 bits.
  CHECK(models["gaussian"].bits == Approx(13.47).margin(0.06));
  CHECK(models["byte_planes"].bits > 13.45);
  // Eight values that are independent of the ones before.
  CHECK(models["token_delta"].bits > models["byte_planes"].bits);
  EntropyModels independent(DType::kF16, channels, tokens);
  independent.Add(rows, tokens);
  CHECK(independent.autoregressive_gain_bits() < 0.01);
}

TEST_CASE("values that follow the token before are cheaper given it") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const uint64_t tokens = 3000, channels = 8;
  std::vector<float> state(channels);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Bytes rows = Rows(dtype, tokens, channels, [&](uint64_t, uint64_t c) {
      // Correlation 0.95 saves -log2(1 - 0.95^2) / 2 = 1.68 bits.
      return state[c] = 0.95f * state[c] + std::sqrt(1 - 0.95f * 0.95f) * normal(random);
    });
    auto models = ModelsOf(dtype, tokens, channels, rows, 500);
    CHECK(models["previous_token"].bits < models["byte_planes"].bits - 0.5);
    EntropyModels walk(dtype, channels, tokens);
    walk.Add(rows, tokens);
    CHECK(walk.autoregressive_gain_bits() == Approx(1.68).margin(0.1));
  }
}

TEST_CASE("little data is not taken for good data") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const Bytes rows = Rows(DType::kF16, 4, 16, [&](uint64_t, uint64_t) { return normal(random); });
  for (const auto& [name, model] : ModelsOf(DType::kF16, 4, 16, rows, 4)) {
    INFO(name);
    if (name == "gaussian") continue;  // with four values per channel a distribution seems narrow
    CHECK(model.total_bits() > 10);
  }
  // One token and one channel: there is nothing to compare with, and nothing fails.
  const Bytes one = Rows(DType::kF16, 1, 1, [](uint64_t, uint64_t) { return 1.0f; });
  auto models = ModelsOf(DType::kF16, 1, 1, one, 1);
  CHECK(models.count("token_delta") == 0);
  CHECK(models.count("channel_xor") == 0);
  CHECK(models["byte_planes"].total_bits() == 0);
}

}  // namespace kv::analysis::entropy_models_test
