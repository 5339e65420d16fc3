// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Quantising kernels against a copy of the floats that they read or write, and the replay of a
// quantised layer against the matrix products that it cannot do without.
#include <cstring>

#include "lib/core/kernels/quantise.h"
#include "lib/study/dense/gemm.h"
#include "lib/study/quantisation/stored_layer.h"
#include "tests/bench/versus.h"
#include "tests/support/attention_case.h"

namespace kv::bench {
namespace {

constexpr size_t kValues = size_t{4} << 20;  // 16 MiB of floats, more than an L2 cache holds
constexpr double kCopyTarget = 0.5, kReplayTarget = 1.3;

std::vector<float> Floats() {
  std::vector<float> values(kValues);
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-29f;
  }
  return values;
}

template <class Own>
void AgainstCopy(benchmark::State& state, const std::vector<float>& from, const Own& own) {
  std::vector<float> copy(from.size());
  Versus(
      state, {.bytes = from.size() * sizeof(float), .target = kCopyTarget},
      [&] {
        std::memcpy(copy.data(), from.data(), from.size() * sizeof(float));
        benchmark::DoNotOptimize(copy.data());
        benchmark::ClobberMemory();
      },
      own);
}

void QuantQ8_0(benchmark::State& state) {
  const std::vector<float> values = Floats();
  std::vector<std::byte> blocks(BytesOf(DType::kQ8_0, kValues));
  AgainstCopy(state, values, [&] {
    QuantiseBlocks(DType::kQ8_0, values, blocks.data());
    benchmark::DoNotOptimize(blocks.data());
    benchmark::ClobberMemory();
  });
}

void DequantQ8_0(benchmark::State& state) {
  std::vector<float> values = Floats();
  std::vector<std::byte> blocks(BytesOf(DType::kQ8_0, kValues));
  QuantiseBlocks(DType::kQ8_0, values, blocks.data());
  std::vector<float> out(kValues);
  AgainstCopy(state, values, [&] {
    DequantiseQ8_0(blocks.data(), out);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  });
}

void QuantFp8(benchmark::State& state) {
  const std::vector<float> values = Floats();
  std::vector<uint8_t> codes(kValues);
  AgainstCopy(state, values, [&] {
    QuantiseFloat8(DType::kF8E4M3, values, 0.01f, Float8Overflow::kSaturate, codes.data());
    benchmark::DoNotOptimize(codes.data());
    benchmark::ClobberMemory();
  });
}

void DequantFp8(benchmark::State& state) {
  const std::vector<float> values = Floats();
  std::vector<uint8_t> codes(kValues);
  QuantiseFloat8(DType::kF8E4M3, values, 0.01f, Float8Overflow::kSaturate, codes.data());
  std::vector<float> out(kValues);
  AgainstCopy(state, values, [&] {
    DequantiseFloat8(DType::kF8E4M3, codes, 0.01f, out.data());
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  });
}

// Measures three types of K and of V, separately and together, in one layer of 2048 tokens and
// heads of 128. The products are: scores and outputs of the full cache; for each type of K the
// change of scores (by the keys and by rounded queries) and of outputs; for each pair the change by
// V.
void ReplayQuantLayer(benchmark::State& state) {
  const auto traced = test::MakeAttentionCase(
      {.layers = 1, .query_heads = 2, .kv_heads = 1, .dim = 128, .tokens = 2048}, 1);
  const LayerAttention attention(traced->trace, traced->trace.layers[0],
                                 traced->snapshot.layers[0]);
  quantisation::StoreRequest request;
  for (const char* name : {"f16", "q8_0", "q5_1", "q4_0"}) {
    request.k_types.push_back(quant::FindCacheType(name));
    request.v_types.push_back(quant::FindCacheType(name));
  }
  std::vector<quantisation::TypePair> pairs;
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t v = 0; v < 4; ++v) pairs.push_back({k, v});
  }
  ThreadPool pool(1);
  const auto stored = StoreLayer(attention, 1, request, pool);
  const auto rows = eviction::ChooseRows(1024, 2048, 256, 0);
  std::vector<float> queries(64 * 128, 0.5f), scores(64 * 2048), outputs(64 * 128);
  const auto products = [&] {
    for (int head = 0; head < 2; ++head) {
      for (size_t tile = 0; tile < rows.positions.size(); tile += 64) {
        const uint64_t keys = rows.positions[tile + 63] + 1;
        const auto score = [&] {
          GemmNT(queries.data(), 128, stored.k.data(), 128, scores.data(), keys, 64, keys, 128);
        };
        const auto output = [&] {
          GemmNN(scores.data(), keys, stored.v.data(), 128, outputs.data(), 128, 64, 128, keys);
        };
        score();
        output();
        for (int k = 0; k < 4; ++k) {
          score();                               // q' (K' - K)
          if (k > 0) score();                    // (q' - q) K
          output();                              // (P' - P) V
          for (int v = 0; v < 4; ++v) output();  // P' (V' - V)
        }
      }
    }
    benchmark::DoNotOptimize(outputs.data());
  };
  Versus(state,
         {.bytes = stored.k.size() * sizeof(float),
          .figure = Figure::kOverhead,
          .target = kReplayTarget},
         products, [&] {
           benchmark::DoNotOptimize(MeasurePairs(attention, stored, request, pairs, rows, pool));
         });
}

BENCHMARK(QuantQ8_0)->UseManualTime()->Iterations(20);
BENCHMARK(DequantQ8_0)->UseManualTime()->Iterations(20);
BENCHMARK(QuantFp8)->UseManualTime()->Iterations(20);
BENCHMARK(DequantFp8)->UseManualTime()->Iterations(20);
BENCHMARK(ReplayQuantLayer)->UseManualTime()->Iterations(10);

}  // namespace
}  // namespace kv::bench
