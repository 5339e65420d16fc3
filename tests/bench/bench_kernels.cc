// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Byte kernels (B8) and conversions (B12) against memcpy of as many bytes; ordered products against
// the plain loop.
#include <cstring>

#include "lib/core/codec/backends.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/ordered_product.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/kernels/predict.h"
#include "lib/core/kernels/rle.h"
#include "tests/bench/stand_in.h"
#include "tests/bench/versus.h"

namespace kv::bench {
namespace {

// A stand-in frame of 1 MiB as a reader returns it, and the codec's own (aligned) buffers.
struct Frame {
  static constexpr size_t kBytes = 1 << 20, kWords = kBytes / 2;
  Bytes raw = Store(StandInK({.tokens = 512}, 1), DType::kF16);
  Bytes out = Bytes(kBytes);
  ScratchBuffer planes_buffer, predicted_buffer;
  std::span<std::byte> planes = planes_buffer.Get(kBytes);
  std::span<std::byte> high = planes.subspan(kWords);
  std::span<std::byte> predicted = predicted_buffer.Get(kWords);

  Frame() { SplitPlanes2(raw.data(), kWords, planes.data(), high.data()); }
};

// Measures a kernel against memcpy of its input to its output.
template <class Kernel>
void AgainstCopy(benchmark::State& state, double target, ByteSpan from, std::span<std::byte> to,
                 const Kernel& kernel) {
  Versus(
      state, {.bytes = to.size(), .target = target, .repeats = 20},
      [&] {
        std::memcpy(to.data(), from.data(), to.size());
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
      },
      [&] {
        kernel();
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
      });
}

void B8Split2(benchmark::State& state) {
  Frame f;
  AgainstCopy(state, 0.8, f.raw, f.planes, [&] {
    SplitPlanes2(f.raw.data(), f.kWords, f.planes.data(), f.planes.data() + f.kWords);
  });
}
void B8Join2(benchmark::State& state) {
  Frame f;
  AgainstCopy(state, 0.8, f.planes, f.out, [&] {
    JoinPlanes2(f.planes.data(), f.planes.data() + f.kWords, f.kWords, f.out.data());
  });
}
void B8Split4(benchmark::State& state) {
  Frame f;
  const size_t words = f.kBytes / 4;
  std::byte* const planes[] = {f.planes.data(), f.planes.data() + words,
                               f.planes.data() + 2 * words, f.planes.data() + 3 * words};
  AgainstCopy(state, 0.8, f.raw, f.planes, [&] { SplitPlanes4(f.raw.data(), words, planes); });
}
void B8Join4(benchmark::State& state) {
  Frame f;
  const size_t words = f.kBytes / 4;
  const std::byte* const planes[] = {f.planes.data(), f.planes.data() + words,
                                     f.planes.data() + 2 * words, f.planes.data() + 3 * words};
  AgainstCopy(state, 0.8, f.planes, f.out, [&] { JoinPlanes4(planes, words, f.out.data()); });
}

using Transform = void (*)(const std::byte*, size_t, std::byte*) noexcept;

void B8Predict(benchmark::State& state, Transform transform, double target) {
  Frame f;
  AgainstCopy(state, target, f.high, f.predicted,
              [&] { transform(f.high.data(), f.high.size(), f.predicted.data()); });
}

void B8RleSize(benchmark::State& state) {
  Frame f;
  AgainstCopy(state, 0, f.high, f.predicted,
              [&] { benchmark::DoNotOptimize(RleEncodedSize(f.high.data(), f.high.size())); });
}

// 64 MiB of floats exceed every cache, so memory is measured. The copy moves as many bytes as the
// kernel reads and writes. All kernels share one set of buffers, since speed depends on whether a
// buffer got huge pages.
struct Conversion {
  static constexpr size_t kValues = 16 << 20;
  std::vector<float> wide = std::vector<float>(kValues);
  Bytes narrow = Bytes(2 * kValues), from = Bytes(3 * kValues), to = Bytes(3 * kValues);

  static Conversion& Of(DType dtype) {
    static Conversion buffers;
    const std::vector<float> some = StandInV({.tokens = 512}, 1);
    for (size_t i = 0; i < kValues; ++i) buffers.wide[i] = some[i % some.size()];
    const Bytes narrow = Store(buffers.wide, dtype);
    std::copy(narrow.begin(), narrow.end(), buffers.narrow.begin());
    return buffers;
  }
  template <class Kernel>
  void Run(benchmark::State& state, const Kernel& kernel, double target) {
    Versus(
        state, {.bytes = 6 * kValues, .target = target},
        [&] {
          std::memcpy(to.data(), from.data(), to.size());
          benchmark::ClobberMemory();
        },
        [&] {
          kernel();
          benchmark::ClobberMemory();
        });
  }
};

using Widen = void (*)(const std::byte*, float*, size_t) noexcept;
using Narrow = void (*)(const float*, std::byte*, size_t) noexcept;

void B12Widen(benchmark::State& state, DType dtype, Widen widen, double target) {
  Conversion& data = Conversion::Of(dtype);
  data.Run(
      state, [&] { widen(data.narrow.data(), data.wide.data(), data.kValues); }, target);
}
void B12Narrow(benchmark::State& state, DType dtype, Narrow narrow, double target) {
  Conversion& data = Conversion::Of(dtype);
  data.Run(
      state, [&] { narrow(data.wide.data(), data.narrow.data(), data.kValues); }, target);
}

// A block of 128 tokens of one layer of SmolLM2-135M: 192 columns of a basis of 5,760 features.
void OrderedProduct(benchmark::State& state) {
  constexpr size_t kTokens = 128, kCount = 1024, kStride = 5760, kColumns = 192;
  const std::vector<float> factors(kTokens * kCount, 0.5f), vectors(kCount * kStride, 0.25f);
  std::vector<float> sums(kTokens * kColumns);
  Versus(
      state, {.bytes = factors.size() * sizeof(float)},
      [&] {
        ref::AddProducts(factors.data(), kTokens, kCount, vectors.data(), kStride, kColumns,
                         sums.data());
        benchmark::DoNotOptimize(sums.data());
      },
      [&] {
        AddProducts(factors.data(), kTokens, kCount, vectors.data(), kStride, kColumns,
                    sums.data());
        benchmark::DoNotOptimize(sums.data());
      });
}

BENCHMARK(OrderedProduct)->UseManualTime()->Iterations(5);
BENCHMARK(B8Split2)->UseManualTime();
BENCHMARK(B8Join2)->UseManualTime();
BENCHMARK(B8Split4)->UseManualTime();
BENCHMARK(B8Join4)->UseManualTime();
BENCHMARK_CAPTURE(B8Predict, delta, DeltaEncode, 0.8)->UseManualTime();
BENCHMARK_CAPTURE(B8Predict, xor, XorEncode, 0.8)->UseManualTime();
BENCHMARK_CAPTURE(B8Predict, undelta, DeltaDecode, 0.3)->UseManualTime();
BENCHMARK_CAPTURE(B8Predict, unxor, XorDecode, 0.3)->UseManualTime();
BENCHMARK(B8RleSize)->UseManualTime();
BENCHMARK_CAPTURE(B12Widen, f16, DType::kF16, HalfToFloat, 0.9)->UseManualTime();
BENCHMARK_CAPTURE(B12Narrow, f16, DType::kF16, FloatToHalf, 0.9)->UseManualTime();
BENCHMARK_CAPTURE(B12Widen, bf16, DType::kBF16, BFloatToFloat, 0.0)->UseManualTime();
BENCHMARK_CAPTURE(B12Narrow, bf16, DType::kBF16, FloatToBFloat, 0.0)->UseManualTime();

}  // namespace
}  // namespace kv::bench
