// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// H2O scores beside their floors in the same process, interleaved: one decode query against a plain
// read of the same keys (B9), all rows of a head against the bare GEMM of the same tiles (B10), and
// a whole replay against its GEMMs. Process CPU time, the least of all rounds.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "lib/core/base/half.h"
#include "lib/core/base/parallel.h"
#include "lib/core/kernels/convert.h"
#include "lib/study/dense/score.h"

namespace kv {
namespace {

constexpr size_t kHeads = 32, kTokens = 4096, kDim = 128, kBlock = 64;
constexpr float kScale = 0.0883883476f;  // 1 / sqrt(128)

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Body>
void KeepBest(double& best, const Body& body) {
  const double begin = CpuSeconds();
  body();
  best = std::min(best, CpuSeconds() - begin);
}

std::vector<float> Normal(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<std::byte> HalfKeys(size_t count) {
  const std::vector<float> values = Normal(count, 1);
  std::vector<std::byte> bytes(count * 2);
  FloatToHalf(values.data(), bytes.data(), count);
  return bytes;
}

KeyRows Head(const std::vector<std::byte>& keys, size_t head) {
  return {keys.data() + head * kTokens * kDim * 2, KeyType::kF16, kDim * 2, kTokens, kDim};
}

// Reads every byte once. Eight sums, so that additions are never the bottleneck.
uint64_t ReadAll(const std::vector<std::byte>& bytes) {
  uint64_t sums[8] = {};
  for (size_t at = 0; at + 64 <= bytes.size(); at += 64) {
    uint64_t words[8];
    std::memcpy(words, bytes.data() + at, 64);
    for (size_t i = 0; i < 8; ++i) sums[i] += words[i];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

void B9(benchmark::State& state) {
  const std::vector<std::byte> keys = HalfKeys(kHeads * kTokens * kDim);
  const std::vector<float> query = Normal(kHeads * kDim, 2);
  std::vector<float> row(kTokens), sums(kTokens / kBlock), wide(kTokens * kDim);
  double own = 1e9, floor = 1e9, widened = 1e9;
  for (auto _ : state) {
    KeepBest(floor, [&] {
      uint64_t sum = ReadAll(keys);
      benchmark::DoNotOptimize(sum);
    });
    KeepBest(own, [&] {
      for (size_t h = 0; h < kHeads; ++h) {
        QueryLogits(&query[h * kDim], Head(keys, h), kScale, row.data());
        ExpBlockSums(row.data(), kTokens, RowMaximum(row.data(), kTokens), kBlock, sums.data());
        benchmark::DoNotOptimize(sums.data());
      }
    });
    KeepBest(widened, [&] {
      for (size_t h = 0; h < kHeads; ++h) {
        HalfToFloat(Head(keys, h).data, wide.data(), wide.size());
        cblas_sgemv(CblasRowMajor, CblasNoTrans, kTokens, kDim, kScale, wide.data(), kDim,
                    &query[h * kDim], 1, 0, row.data(), 1);
        ExpBlockSums(row.data(), kTokens, RowMaximum(row.data(), kTokens), kBlock, sums.data());
      }
    });
  }
  state.counters["own_ms"] = own * 1e3;
  state.counters["read_ms"] = floor * 1e3;
  state.counters["own_over_read"] = own / floor;
  state.counters["widen_gemv_over_own"] = widened / own;
  state.counters["gb_per_s"] = static_cast<double>(keys.size()) / own * 1e-9;
}
BENCHMARK(B9)->Name("B9_h2o_decode_32x128x4096_f16")->Unit(benchmark::kMillisecond);

struct Buffers {
  std::vector<float> logits = std::vector<float>(kTileRows * kTokens);
  std::vector<float> scratch = std::vector<float>(BlockSumScratchFloats(kDim, kTokens));
  std::vector<float> sums = std::vector<float>(kTokens);
};

// Computes causal attention of all rows of one head, summed per block.
void Scores(const KeyRows& keys, const std::vector<float>& queries, size_t block,
            Buffers& buffers) {
  std::fill(buffers.sums.begin(), buffers.sums.end(), 0.0f);
  for (size_t begin = 0; begin < kTokens; begin += kTileRows) {
    AddTileBlockSums({&queries[begin * kDim], kDim, kTileRows, keys, begin + 1, kScale}, block,
                     nullptr, buffers.scratch.data(), buffers.sums.data());
  }
}

// Computes only the matrix products, of the same tiles with keys that are already widened.
void BareGemms(const std::vector<float>& wide, const std::vector<float>& queries,
               Buffers& buffers) {
  for (size_t begin = 0; begin < kTokens; begin += kTileRows) {
    const size_t columns = begin + kTileRows;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kTileRows, static_cast<int>(columns), kDim,
                kScale, &queries[begin * kDim], kDim, wide.data(), kDim, 0, buffers.logits.data(),
                static_cast<int>(columns));
  }
}

void B10(benchmark::State& state) {
  const std::vector<std::byte> keys = HalfKeys(kTokens * kDim);
  const std::vector<float> queries = Normal(kTokens * kDim, 3);
  std::vector<float> wide(kTokens * kDim);
  HalfToFloat(keys.data(), wide.data(), wide.size());
  Buffers buffers;
  double own = 1e9, floor = 1e9;
  for (auto _ : state) {
    KeepBest(floor, [&] { BareGemms(wide, queries, buffers); });
    KeepBest(own,
             [&] { Scores(Head(keys, 0), queries, static_cast<size_t>(state.range(0)), buffers); });
  }
  state.counters["own_ms"] = own * 1e3;
  state.counters["gemm_ms"] = floor * 1e3;
  state.counters["own_over_gemm"] = own / floor;
}
BENCHMARK(B10)
    ->Name("B10_h2o_replay_head_4096x4096x128_f16")
    ->ArgName("block")
    ->Arg(64)
    ->Arg(1)
    ->Unit(benchmark::kMillisecond);

// Measures 32 layers x 32 heads x 4096 rows; threads share the heads. All layers use the keys of
// one layer.
void WholeReplay(benchmark::State& state) {
  constexpr size_t kLayers = 32;
  const std::vector<std::byte> keys = HalfKeys(kHeads * kTokens * kDim);
  const std::vector<float> queries = Normal(kTokens * kDim, 3);
  std::vector<float> wide(kTokens * kDim);
  HalfToFloat(keys.data(), wide.data(), wide.size());
  ThreadPool pool(static_cast<int>(state.range(0)));
  Buffers bare;
  double head = 1e9;
  for (int i = 0; i < 5; ++i) KeepBest(head, [&] { BareGemms(wide, queries, bare); });
  for (auto _ : state) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      pool.ParallelFor(kHeads, [&](uint64_t h) {
        Buffers buffers;
        Scores(Head(keys, h), queries, kBlock, buffers);
        benchmark::DoNotOptimize(buffers.sums.data());
      });
    }
  }
  state.counters["gemm_floor_s"] = head * kHeads * kLayers / static_cast<double>(state.range(0));
}
BENCHMARK(WholeReplay)
    ->Name("h2o_replay_32x32x4096_f16")
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace kv
