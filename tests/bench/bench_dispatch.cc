// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Small kernels with a dispatched source, each beside what would take its place: the matrix product
// of whole numbers beside BLAS, the others beside their plain loop, as the compiler vectorises it
// for the baseline CPU.
#include <cmath>

#include "lib/core/kernels/deviation.h"
#include "lib/core/kernels/dot8.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/core/kernels/hamming.h"
#include "lib/core/kernels/products.h"
#include "lib/core/kernels/rope.h"
#include "lib/study/dense/gemm.h"
#include "tests/bench/stand_in.h"
#include "tests/bench/versus.h"

namespace kv::bench {
namespace {

// Turns of each side: enough for the fastest one to be the machine's best.
constexpr int kTurns = 200;

// Some queries with many candidates, as the search for like rows forms them.
void DotProducts(benchmark::State& state) {
  constexpr size_t kQueries = 64, kCandidates = 1024;
  const auto columns = static_cast<size_t>(state.range(0));
  std::vector<int8_t> values((kCandidates + kQueries) * columns);
  std::vector<float> floats(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int8_t>(i * 7919 % 63 - 31);
    floats[i] = values[i];
  }
  std::vector<int32_t> sums(kQueries * kCandidates);
  std::vector<float> float_sums(sums.size());
  Versus(
      state, {.bytes = sums.size() * columns, .target = 1, .repeats = 4},
      [&] {
        GemmNT(floats.data() + kCandidates * columns, columns, floats.data(), columns,
               float_sums.data(), kCandidates, kQueries, kCandidates, columns);
        benchmark::DoNotOptimize(float_sums.data());
        benchmark::ClobberMemory();
      },
      [&] {
        DotProducts8(values.data(), kCandidates, values.data() + kCandidates * columns, kQueries,
                     columns, sums.data());
        benchmark::DoNotOptimize(sums.data());
        benchmark::ClobberMemory();
      });
}

std::vector<float> Values(size_t count) {
  std::vector<float> values = StandInV({.tokens = 512}, 1);
  values.resize(count);
  return values;
}

// Rows of `columns`, so many that the second cache holds them.
struct Rows {
  static constexpr size_t kValues = 1 << 16;
  explicit Rows(benchmark::State& state) : columns(static_cast<size_t>(state.range(0))) {}
  const float* Row(size_t row) const { return values.data() + row * columns; }

  size_t columns, count = kValues / columns;
  std::vector<float> values = Values(kValues);
};

template <class Plain, class Dispatched>
void AgainstPlainLoop(benchmark::State& state, uint64_t bytes, const Plain& plain,
                      const Dispatched& dispatched) {
  Versus(state, {.bytes = bytes, .target = 1, .repeats = 10}, plain, dispatched);
}

void Products(benchmark::State& state) {
  const Rows rows(state);
  const std::vector<float> mean(rows.columns, 0.1f), inverse(rows.columns, 1.5f);
  const auto all = [&](auto kernel) {
    float sum = 0;
    for (size_t row = 1; row < rows.count; ++row)
      sum +=
          kernel(rows.Row(row - 1), rows.Row(row), mean.data(), inverse.data(), rows.columns).both;
    benchmark::DoNotOptimize(sum);
  };
  AgainstPlainLoop(
      state, sizeof(float) * Rows::kValues, [&] { all(ref::ProductsOfDeviations); },
      [&] { all(ProductsOfDeviations); });
}

void Deviation(benchmark::State& state) {
  const Rows rows(state);
  const auto all = [&](auto kernel) {
    double sum = 0;
    for (size_t row = 1; row < rows.count; ++row)
      sum += kernel(rows.Row(row - 1), rows.Row(row), rows.columns).difference;
    benchmark::DoNotOptimize(sum);
  };
  AgainstPlainLoop(
      state, sizeof(float) * Rows::kValues, [&] { all(ref::DeviationOfRow); },
      [&] { all(DeviationOfRow); });
}

void HadamardTransform(benchmark::State& state) {
  const auto size = static_cast<uint32_t>(state.range(0));
  std::vector<float> values = Values(Rows::kValues);
  const auto all = [&](auto kernel) {
    kernel(values.data(), values.size(), size);
    benchmark::DoNotOptimize(values.data());
    benchmark::ClobberMemory();
  };
  AgainstPlainLoop(
      state, sizeof(float) * Rows::kValues, [&] { all(ref::Hadamard); }, [&] { all(Hadamard); });
}

void Hamming(benchmark::State& state) {
  constexpr size_t kCount = 1536;
  const auto words = static_cast<size_t>(state.range(0));
  std::vector<uint64_t> signatures(words * kCount);
  for (size_t i = 0; i < signatures.size(); ++i) signatures[i] = (i + 1) * 0x9e3779b97f4a7c15;
  const uint64_t query[2] = {0x0123456789abcdef, 0xfedcba9876543210};
  const auto search = [&](auto kernel) {
    benchmark::DoNotOptimize(kernel(signatures.data(), kCount, words, kCount, query));
    benchmark::ClobberMemory();
  };
  AgainstPlainLoop(
      state, sizeof(uint64_t) * signatures.size(), [&] { search(ref::FindNearest); },
      [&] { search(FindNearest); });
}

void Rope(benchmark::State& state, RopePairs style) {
  const auto pairs = static_cast<size_t>(state.range(0)) / 2;
  std::vector<float> values = Values(Rows::kValues);
  std::vector<double> cosines(pairs), sines(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    cosines[i] = std::cos(static_cast<double>(i));
    sines[i] = std::sin(static_cast<double>(i));
  }
  const auto all = [&](auto kernel) {
    for (size_t i = 0; i < values.size(); i += 2 * pairs)
      kernel(values.data() + i, pairs, style, cosines.data(), sines.data());
    benchmark::DoNotOptimize(values.data());
    benchmark::ClobberMemory();
  };
  AgainstPlainLoop(
      state, sizeof(float) * Rows::kValues, [&] { all(ref::RotatePairs); },
      [&] { all(RotatePairs); });
}

BENCHMARK(DotProducts)
    ->Arg(64)
    ->Arg(128)
    ->Arg(1024)
    ->Arg(4096)
    ->Iterations(kTurns)
    ->UseManualTime();
BENCHMARK(Products)->Arg(128)->Arg(1024)->Iterations(kTurns)->UseManualTime();
BENCHMARK(Deviation)->Arg(128)->Arg(1024)->Iterations(kTurns)->UseManualTime();
BENCHMARK(HadamardTransform)->Arg(64)->Arg(128)->Iterations(kTurns)->UseManualTime();
BENCHMARK(Hamming)->Arg(1)->Arg(2)->Iterations(kTurns)->UseManualTime();
BENCHMARK_CAPTURE(Rope, halves, RopePairs::kHalves)->Arg(128)->Iterations(kTurns)->UseManualTime();
BENCHMARK_CAPTURE(Rope, neighbours, RopePairs::kNeighbours)
    ->Arg(128)
    ->Iterations(kTurns)
    ->UseManualTime();

}  // namespace
}  // namespace kv::bench
