// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The compressor's MLP beside its floor, the bare GEMM calls of the same shapes (B11), in the same
// process and interleaved. Thread CPU time, the least of all rounds, so that other jobs do not
// affect it.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "lib/study/dense/mlp.h"
#include "tests/support/mlp_weights.h"

namespace kv {
namespace {

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

struct Shape {
  uint32_t rows, in, hidden, hidden2, out;
};

std::vector<float> Random(uint64_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

Mlp RandomMlp(const Shape& shape, MlpNumbers numbers, std::mt19937& random) {
  const uint32_t sizes[] = {shape.in, shape.hidden, shape.hidden2, shape.out};
  std::array<MlpLinear, 3> linears;
  for (size_t i = 0; i < 3; ++i) {
    const float scale = 1 / std::sqrt(static_cast<float>(sizes[i]));
    linears[i] = {sizes[i], sizes[i + 1], Random(uint64_t{sizes[i]} * sizes[i + 1], scale, random),
                  Random(sizes[i + 1], scale, random)};
  }
  return Mlp(std::move(linears), numbers);
}

// Only the three products, over all rows at once, without bias or ReLU.
template <typename T>
struct BareGemms {
  BareGemms(const Mlp& mlp, const std::vector<float>& input, uint64_t row_count)
      : rows(static_cast<int>(row_count)), x(input.begin(), input.end()) {
    for (const MlpLinear& linear : mlp.linears()) {
      weights.emplace_back(linear.weight.begin(), linear.weight.end());
      outputs.emplace_back(row_count * linear.out);
      in.push_back(static_cast<int>(linear.in));
      out.push_back(static_cast<int>(linear.out));
    }
  }

  void Run() {
    const T* from = x.data();
    for (size_t i = 0; i < weights.size(); ++i) {
      if constexpr (sizeof(T) == 4) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, out[i], in[i], 1, from, in[i],
                    weights[i].data(), in[i], 0, outputs[i].data(), out[i]);
      } else {
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, out[i], in[i], 1, from, in[i],
                    weights[i].data(), in[i], 0, outputs[i].data(), out[i]);
      }
      from = outputs[i].data();
    }
  }

  int rows;
  std::vector<T> x;
  std::vector<std::vector<T>> weights, outputs;
  std::vector<int> in, out;
};

// Returns the floating-point operations for one row.
double CountFlop(const Mlp& mlp) {
  double flop = 0;
  for (const MlpLinear& linear : mlp.linears()) flop += 2.0 * linear.in * linear.out;
  return flop;
}

template <typename T>
void RunShape(benchmark::State& state, const Shape& shape, MlpNumbers numbers) {
  std::mt19937 random(1);
  const Mlp mlp = RandomMlp(shape, numbers, random);
  const std::vector<float> x = Random(uint64_t{shape.rows} * shape.in, 1, random);
  std::vector<float> y(uint64_t{shape.rows} * shape.out);
  BareGemms<T> bare(mlp, x, shape.rows);
  ThreadPool pool(1);
  double own = 1e9, floor = 1e9;
  for (auto _ : state) {
    KeepBest(floor, [&] { bare.Run(); });
    KeepBest(own, [&] { test::RunMlp(mlp, x.data(), shape.rows, y.data(), pool); });
    benchmark::DoNotOptimize(y.data());
  }
  const double flop = CountFlop(mlp) * shape.rows;
  state.counters["own_ms"] = own * 1e3;
  state.counters["gemm_ms"] = floor * 1e3;
  state.counters["own_over_gemm"] = own / floor;
  state.counters["gflops"] = flop / own * 1e-9;
}

// Measures the shape of experiment B11: 16384 x 512-256-256-128.
void B11(benchmark::State& state) {
  RunShape<float>(state, {16384, 512, 256, 256, 128}, MlpNumbers::kF32);
}
BENCHMARK(B11)->Name("B11_mlp_16384x512-256-256-128_f32")->Unit(benchmark::kMillisecond);

// Measures the shape of the published checkpoints: head dim 128, factor 5.
void RealShape(benchmark::State& state) {
  RunShape<float>(state, {16384, 640, 128, 128, 128}, MlpNumbers::kF32);
}
BENCHMARK(RealShape)->Name("mlp_16384x640-128-128-128_f32")->Unit(benchmark::kMillisecond);

// Measures that shape in an f16 cache: sums in double, rounded once per Linear; the floor is dgemm.
void RealShapeHalf(benchmark::State& state) {
  RunShape<double>(state, {16384, 640, 128, 128, 128}, MlpNumbers::kF16);
}
BENCHMARK(RealShapeHalf)->Name("mlp_16384x640-128-128-128_f16")->Unit(benchmark::kMillisecond);

// Measures one LLaVA image: 32 layers x 32 heads x 115 groups, K and V; each layer has its own
// weights.
void Llava(benchmark::State& state) {
  constexpr uint64_t kLayers = 32, kRows = 32 * 115;
  std::mt19937 random(2);
  std::vector<Mlp> mlps;
  for (uint64_t i = 0; i < 2 * kLayers; ++i) {
    mlps.push_back(RandomMlp({kRows, 640, 128, 128, 128}, MlpNumbers::kF32, random));
  }
  const std::vector<float> x = Random(kRows * 640, 1, random);
  std::vector<float> y(kRows * 128);
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    for (const Mlp& mlp : mlps) test::RunMlp(mlp, x.data(), kRows, y.data(), pool);
    benchmark::DoNotOptimize(y.data());
  }
  const double flop = CountFlop(mlps[0]) * static_cast<double>(kRows * mlps.size());
  state.counters["gflop"] = flop * 1e-9;
  state.counters["gflops"] = benchmark::Counter(
      flop * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(Llava)
    ->Name("mlp_llava_32x32x576_f32")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kv
