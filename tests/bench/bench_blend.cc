// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// CacheBlend's pass over two caches against a copy of as many bytes, and its kernel against its
// scalar reference.
#include <cstring>

#include "lib/core/kernels/deviation.h"
#include "lib/core/snapshot/layout.h"
#include "lib/engines/cacheblend/deviation.h"
#include "tests/bench/stand_in.h"
#include "tests/bench/versus.h"

namespace kv::bench {
namespace {

constexpr uint64_t kTokens = 4096;
constexpr uint32_t kHeads = 8, kDim = 128;

std::shared_ptr<const Snapshot> CacheOf(const Bytes& values) {
  auto snapshot = std::make_shared<Snapshot>();
  LayerKv layer;
  layer.k =
      ContiguousTensor(values.data(), DType::kF16, kTokens, kHeads, kDim, Order::kTokenHeadDim);
  layer.v = layer.k;
  snapshot->layers.push_back(layer);
  return snapshot;
}

// Measures one layer of an 8B model at 4096 tokens with rotated keys. The floor copies the data
// that the pass only reads.
void BlendDeviations(benchmark::State& state) {
  const Bytes full(kTokens * kHeads * kDim * 2, std::byte{0x3c}), old(full.size(), std::byte{0x3b});
  const blend::CachePair caches(blend::WholePrompt(CacheOf(full), {}),
                                blend::SplitOld(CacheOf(old), {1000, 3096}, blend::BosRule::kNone,
                                                {blend::KeyState::kLocal, {}}),
                                Rope{});
  ThreadPool pool(1);
  Bytes copy(4 * full.size());
  Versus(
      state, {.bytes = copy.size()},
      [&] {
        for (int i = 0; i < 4; ++i) {
          std::memcpy(&copy[static_cast<size_t>(i) * full.size()],
                      i % 2 == 0 ? full.data() : old.data(), full.size());
        }
        benchmark::DoNotOptimize(copy.data());
        benchmark::ClobberMemory();
      },
      [&] { benchmark::DoNotOptimize(blend::MeasureDeviations(caches, pool, nullptr)); });
}

void BlendDeviationOfRow(benchmark::State& state) {
  const std::vector<float> full(kHeads * kDim, 1.5f), old(kHeads * kDim, 1.25f);
  Versus(
      state, {.bytes = 2 * full.size() * sizeof(float), .repeats = 200},
      [&] { benchmark::DoNotOptimize(ref::DeviationOfRow(full.data(), old.data(), full.size())); },
      [&] { benchmark::DoNotOptimize(DeviationOfRow(full.data(), old.data(), full.size())); });
}

BENCHMARK(BlendDeviations)->UseManualTime()->Iterations(20);
BENCHMARK(BlendDeviationOfRow)->UseManualTime()->Iterations(200);

}  // namespace
}  // namespace kv::bench
