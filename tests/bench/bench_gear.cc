// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The gear codec against a plain implementation of it (B1), itself on one thread (B2) and zstd
// alone (B3).
#include <zstd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "formats/registry.h"
#include "lib/core/base/parallel.h"
#include "lib/core/codec/planes/gear.h"
#include "lib/core/snapshot/layout.h"
#include "tests/bench/naive_gear.h"
#include "tests/bench/stand_in.h"
#include "tests/bench/versus.h"

namespace kv::bench {
namespace {

constexpr uint64_t kMiB = 1 << 20, kSmall = 32 << 10;

struct FrameSet {
  std::vector<Bytes> frames;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Bytes& frame : frames) sum += frame.size();
    return sum;
  }
  void Cut(ByteSpan bytes, uint64_t frame_bytes, size_t most) {
    for (size_t i = 0; i < most && !bytes.empty(); ++i) {
      const ByteSpan frame = bytes.first(std::min<size_t>(bytes.size(), frame_bytes));
      frames.emplace_back(frame.begin(), frame.end());
      bytes = bytes.subspan(frame.size());
    }
  }
};

enum class Data { kKV, kRepeatingV, kReal };

// Returns K and V together: eight frames of each, from the stand-in caches.
FrameSet StandInFrames(Data data, DType dtype, uint64_t frame_bytes) {
  const StandInShape shape;
  FrameSet set;
  if (data == Data::kRepeatingV) {
    set.Cut(Store(StandInRepeatingV(shape, 3, 512), dtype), frame_bytes, 8);
    return set;
  }
  set.Cut(Store(StandInK(shape, 1), dtype), frame_bytes, 8);
  set.Cut(Store(StandInV(shape, 2), dtype), frame_bytes, 8);
  return set;
}

// Returns K and V of every layer of a real snapshot, in the chunks that the engine would use.
FrameSet RealFrames(DType dtype, uint64_t frame_bytes) {
  const std::filesystem::path path =
      std::filesystem::path(KVTOOL_TESTDATA) / "llamacpp/states" /
      (dtype == DType::kBF16 ? "s260k-v050-bf16.seq0.bin" : "s260k-b8352-2seq.session.bin");
  FrameSet set;
  if (!std::filesystem::exists(path)) return set;
  const Snapshot snapshot = OpenSnapshot(Source::Open(path), {});
  for (const LayerKv& layer : snapshot.layers) {
    for (const KvTensor* tensor : {&layer.k, layer.v ? &*layer.v : nullptr}) {
      if (tensor == nullptr) continue;
      set.Cut(Gather(*tensor, 0, tensor->tokens(), Order::kHeadTokenDim), frame_bytes, SIZE_MAX);
    }
  }
  return set;
}

const FrameSet& Frames(Data data, DType dtype, uint64_t frame_bytes) {
  static std::map<std::tuple<Data, DType, uint64_t>, FrameSet> made;
  const auto key = std::tuple(data, dtype, frame_bytes);
  if (made.count(key) == 0) {
    made[key] = data == Data::kReal ? RealFrames(dtype, frame_bytes)
                                    : StandInFrames(data, dtype, frame_bytes);
  }
  return made[key];
}

GearKind KindOf(DType dtype) {
  return dtype == DType::kF32 ? GearKind::kFourPlanes : GearKind::kTwoPlanes;
}

std::vector<Bytes> EncodeAll(const FrameSet& set, GearKind kind, CodecScratch& scratch) {
  std::vector<Bytes> encoded(set.frames.size());
  for (size_t i = 0; i < encoded.size(); ++i)
    EncodeGear(kind, set.frames[i], {}, scratch, encoded[i]);
  return encoded;
}

bool Empty(benchmark::State& state, const FrameSet& set) {
  if (set.frames.empty()) state.SkipWithError("no data");
  return set.frames.empty();
}

void B1Encode(benchmark::State& state, Data data, DType dtype, uint64_t frame_bytes,
              double target) {
  const FrameSet& set = Frames(data, dtype, frame_bytes);
  if (Empty(state, set)) return;
  const GearKind kind = KindOf(dtype);
  CodecScratch scratch;
  uint64_t stored = 0;
  for (size_t i = 0; i < set.frames.size(); ++i) {
    Bytes own;
    EncodeGear(kind, set.frames[i], {}, scratch, own);
    if (own != NaiveGear(set.frames[i], CountPlanes(kind)))
      return state.SkipWithError("the bytes differ from the plain encoder's");
    stored += own.size();
  }
  Versus(
      state, {.bytes = set.bytes(), .target = target},
      [&] {
        for (const Bytes& frame : set.frames)
          benchmark::DoNotOptimize(NaiveGear(frame, CountPlanes(kind)));
      },
      [&] { benchmark::DoNotOptimize(EncodeAll(set, kind, scratch)); });
  state.counters["size_ratio"] = static_cast<double>(set.bytes()) / static_cast<double>(stored);
}

void B2Threads(benchmark::State& state, DType dtype, uint64_t frame_bytes) {
  const FrameSet& set = Frames(Data::kKV, dtype, frame_bytes);
  const GearKind kind = KindOf(dtype);
  std::vector<Bytes> encoded(set.frames.size());
  const auto encode = [&](ThreadPool& pool) {
    pool.ParallelFor(set.frames.size(), [&](uint64_t i) {
      thread_local CodecScratch own;
      encoded[i].clear();
      EncodeGear(kind, set.frames[i], {}, own, encoded[i]);
    });
  };
  ThreadPool one(1), two(2);
  Versus(
      state, {.bytes = set.bytes(), .target = 1.85, .clock = Clock::kWall}, [&] { encode(one); },
      [&] { encode(two); });
}

void B3Decode(benchmark::State& state, Data data, DType dtype, uint64_t frame_bytes) {
  const FrameSet& set = Frames(data, dtype, frame_bytes);
  if (Empty(state, set)) return;
  const GearKind kind = KindOf(dtype);
  CodecScratch scratch;
  const std::vector<Bytes> encoded = EncodeAll(set, kind, scratch);
  std::vector<GearLayout> layouts;
  for (const Bytes& container : encoded) layouts.push_back(ReadGear(kind, container));
  Bytes raw(frame_bytes), planes(frame_bytes);
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  Versus(
      state, {.bytes = set.bytes(), .figure = Figure::kOverhead, .target = 1.20, .repeats = 4},
      [&] {
        for (const GearLayout& layout : layouts) {
          std::byte* plane = planes.data();
          for (const PlaneFrame& frame : layout.planes) {
            if (frame.codec != static_cast<uint8_t>(Backend::kZstd)) continue;
            benchmark::DoNotOptimize(ZSTD_decompressDCtx(
                context.get(), plane, frame.raw_bytes, frame.payload.data(), frame.payload.size()));
            plane += frame.raw_bytes;
          }
        }
      },
      [&] {
        for (size_t i = 0; i < encoded.size(); ++i) {
          DecodeGear(kind, encoded[i], std::span(raw).first(set.frames[i].size()), scratch);
          benchmark::DoNotOptimize(raw.data());
        }
      });
}

#define GEAR(figure, name, ...) \
  BENCHMARK_CAPTURE(figure, name, __VA_ARGS__)->UseManualTime()->Unit(benchmark::kMillisecond)

GEAR(B1Encode, f16_1MiB, Data::kKV, DType::kF16, kMiB, 2.2);
GEAR(B1Encode, f16_32KiB, Data::kKV, DType::kF16, kSmall, 2.2);
GEAR(B1Encode, bf16_1MiB, Data::kKV, DType::kBF16, kMiB, 1.35);
GEAR(B1Encode, bf16_32KiB, Data::kKV, DType::kBF16, kSmall, 1.35);
GEAR(B1Encode, f32_1MiB, Data::kKV, DType::kF32, kMiB, 0);
GEAR(B1Encode, f16_repeating_rows_1MiB, Data::kRepeatingV, DType::kF16, kMiB, 1.25);
GEAR(B1Encode, f16_real_layers, Data::kReal, DType::kF16, kMiB, 0);
GEAR(B1Encode, bf16_real_layers, Data::kReal, DType::kBF16, kMiB, 0);

GEAR(B2Threads, f16_1MiB, DType::kF16, kMiB);
GEAR(B2Threads, bf16_1MiB, DType::kBF16, kMiB);

GEAR(B3Decode, f16_1MiB, Data::kKV, DType::kF16, kMiB);
GEAR(B3Decode, f16_32KiB, Data::kKV, DType::kF16, kSmall);
GEAR(B3Decode, bf16_1MiB, Data::kKV, DType::kBF16, kMiB);
GEAR(B3Decode, bf16_32KiB, Data::kKV, DType::kBF16, kSmall);
GEAR(B3Decode, f32_1MiB, Data::kKV, DType::kF32, kMiB);
GEAR(B3Decode, f16_real_layers, Data::kReal, DType::kF16, kMiB);
GEAR(B3Decode, bf16_real_layers, Data::kReal, DType::kBF16, kMiB);

}  // namespace
}  // namespace kv::bench
