// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The offline simulator against the zstd calls that it cannot do without. Its sizes are those that
// the library returns, so these calls are the floor. scripts/bench/offline.py measures the same
// experiment in numpy.
#include "lib/core/kernels/planes.h"
#include "lib/core/snapshot/layout.h"
#include "lib/engines/mnn/offline/offline.h"
#include "tests/bench/stand_in.h"
#include "tests/bench/versus.h"

namespace kv::bench {
namespace {

using mnn::offline::kStreams;
using mnn::offline::PlaneShape;
using mnn::offline::Stream;

constexpr uint64_t kTokens = 384, kChunk = 192;

struct Cache {
  StandInShape shape{kTokens, 8, 128};
  Bytes k = Store(StandInK(shape, 1), DType::kF16), v = Store(StandInV(shape, 2), DType::kF16);
  mnn::offline::Options options = mnn::offline::OnlineSimOptions();
  std::vector<DumpEntry> entries;
  std::vector<Bytes> payloads;  // all compressed blocks, concatenated

  Cache() {
    DumpEntry& entry = entries.emplace_back();
    entry.run = "run";
    entry.tokens = kTokens;
    entry.heads = shape.heads;
    entry.head_dim = shape.head_dim;
    entry.element_bytes = 2;
    const auto tensor = [&](const Bytes& bytes) {
      return ContiguousTensor(bytes.data(), DType::kF16, kTokens, shape.heads, shape.head_dim,
                              Order::kTokenHeadDim);
    };
    entry.k = tensor(k);
    entry.v = tensor(v);
    for (uint64_t begin = 0; begin < kTokens; begin += kChunk) {
      AddChunk(k, begin, mnn::offline::kKHi, mnn::offline::kKLo);
      AddChunk(v, begin, mnn::offline::kVHi, mnn::offline::kVLo);
    }
  }

  void AddChunk(const Bytes& tensor, uint64_t begin, Stream high, Stream low) {
    const uint64_t row = uint64_t{shape.heads} * shape.head_dim, size = kChunk * row;
    Bytes planes[2] = {Bytes(size), Bytes(size)};
    SplitPlanes2(tensor.data() + 2 * begin * row, size, planes[0].data(), planes[1].data());
    const uint64_t block = static_cast<uint64_t>(options.block_tokens);
    for (const Stream stream : {low, high}) {
      const Bytes& plane = planes[stream == high];
      for (uint64_t at = 0; at < kChunk; at += block) {
        const PlaneShape part = {block, row, shape.head_dim};
        for (const mnn::offline::Predictor predictor : options.predictors[stream]) {
          mnn::offline::Predict(predictor, part, plane.data() + at * row,
                                payloads.emplace_back(block * row).data());
        }
      }
      payloads.push_back(plane);  // about as many bytes as the chosen blocks have
    }
  }
};

void OfflineOverZstd(benchmark::State& state) {
  static const Cache cache;
  ThreadPool pool(1);
  Zstd zstd;
  Bytes frame(Zstd::Bound(kChunk * 8 * 128));
  Versus(
      state, {.bytes = cache.k.size() + cache.v.size(), .figure = Figure::kOverhead, .target = 1.3},
      [&] {
        for (const Bytes& payload : cache.payloads) {
          benchmark::DoNotOptimize(zstd.Compress(payload, frame));
        }
      },
      [&] {
        benchmark::DoNotOptimize(mnn::offline::Simulate(cache.entries, cache.options, pool));
      });
}
BENCHMARK(OfflineOverZstd)->UseManualTime();

}  // namespace
}  // namespace kv::bench
