// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The two kernels that search for rows that resemble each other, each compared with its
// alternative: integer products with the BLAS, distances of signatures with the plain loop, as the
// compiler vectorises it for the baseline CPU.
#include <vector>

#include "lib/core/kernels/similarity.h"
#include "lib/study/dense/gemm.h"
#include "tests/bench/versus.h"

namespace kv::bench {
namespace {

// Repetitions of each side, enough for the fastest one to be the machine's best.
constexpr int kTurns = 200;

// Multiplies few queries with many candidates, the shape in the search for similar rows.
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

// Compares as many signatures as level high does for one row of 128 channels.
void Hamming(benchmark::State& state) {
  constexpr size_t kCount = 768;
  const auto words = static_cast<size_t>(state.range(0));
  std::vector<uint64_t> signatures(words * kCount);
  for (size_t i = 0; i < signatures.size(); ++i) signatures[i] = (i + 1) * 0x9e3779b97f4a7c15;
  const uint64_t query[2] = {0x0123456789abcdef, 0xfedcba9876543210};
  const auto search = [&](auto kernel) {
    benchmark::DoNotOptimize(kernel(signatures.data(), kCount, words, kCount, query));
    benchmark::ClobberMemory();
  };
  Versus(
      state, {.bytes = sizeof(uint64_t) * signatures.size(), .target = 1, .repeats = 20},
      [&] { search(ref::FindNearest); }, [&] { search(FindNearest); });
}

BENCHMARK(DotProducts)
    ->Arg(64)
    ->Arg(128)
    ->Arg(1024)
    ->Arg(4096)
    ->Iterations(kTurns)
    ->UseManualTime();
BENCHMARK(Hamming)->Arg(1)->Arg(2)->Iterations(kTurns)->UseManualTime();

}  // namespace
}  // namespace kv::bench
