// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares the levels above compat with compat and with other ways to code the same chunks. `size`
// is the peer's stored size over the own one, `size_ratio` the uncompressed size over the own one.
#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "lib/core/base/parallel.h"
#include "lib/core/kernels/window4.h"
#include "lib/study/bench/contest.h"
#include "tests/bench/stand_in.h"
#include "tests/bench/versus.h"

namespace kv::bench {
namespace {

constexpr uint64_t kMiB = 1 << 20, kSmall = 32 << 10;

enum class Part { kK, kV, kBoth };

using Chunks = std::vector<ContestChunk>;

// Up to eight chunks of K and of V of the stand-in cache.
const Chunks& FindChunks(Part part, DType dtype, uint64_t chunk_bytes) {
  static std::map<std::tuple<Part, DType, uint64_t>, Chunks> made;
  Chunks& chunks = made[{part, dtype, chunk_bytes}];
  if (!chunks.empty()) return chunks;
  const StandInShape shape;
  const uint64_t row = 2 * uint64_t{shape.heads} * shape.head_dim;
  for (const bool is_value : {false, true}) {
    if (part == (is_value ? Part::kK : Part::kV)) continue;
    const Bytes all = Store(is_value ? StandInV(shape, 2) : StandInK(shape, 1), dtype);
    for (size_t i = 0; i < 8; ++i) {
      ContestChunk& chunk = chunks.emplace_back();
      chunk.head = HeadOfRows(
          is_value, {dtype, chunk_bytes / row, shape.heads, shape.head_dim, Order::kTokenHeadDim},
          true);
      const ByteSpan bytes = ByteSpan(all).subspan(i * chunk_bytes, chunk_bytes);
      chunk.raw.assign(bytes.begin(), bytes.end());
    }
  }
  return chunks;
}

uint64_t BytesOf(const Chunks& chunks) {
  uint64_t sum = 0;
  for (const ContestChunk& chunk : chunks) sum += chunk.raw.size();
  return sum;
}

Contestant Level(Effort effort) {
  for (Contestant& level : LevelContestants()) {
    if (level.name == Name(effort)) return std::move(level);
  }
  return {};
}

Contestant Peer(std::string_view name) {
  for (Contestant& peer : PeerContestants(false)) {
    if (peer.name.find(name) != std::string::npos) return std::move(peer);
  }
  return {};
}

using Encoded = std::vector<ContestPayload>;

void EncodeAll(const Contestant& one, const Chunks& chunks, CodecScratch& scratch, Encoded& out) {
  out.resize(chunks.size());
  for (size_t i = 0; i < chunks.size(); ++i) one.encode(chunks[i], scratch, out[i]);
}

void DecodeAll(const Contestant& one, const Chunks& chunks, const Encoded& encoded,
               CodecScratch& scratch, Bytes& raw) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    raw.resize(chunks[i].raw.size());
    one.decode(chunks[i], encoded[i], scratch, raw);
  }
  benchmark::DoNotOptimize(raw.data());
}

double StoredBytes(const Encoded& encoded) {
  double sum = 0;
  for (const ContestPayload& chunk : encoded) sum += static_cast<double>(chunk.payload.size());
  return sum;
}

void Sizes(benchmark::State& state, const Chunks& chunks, const Encoded& peer, const Encoded& own) {
  state.counters["size"] = StoredBytes(peer) / StoredBytes(own);
  state.counters["size_ratio"] = static_cast<double>(BytesOf(chunks)) / StoredBytes(own);
}

void EncodeVersus(benchmark::State& state, const Contestant& peer, const Contestant& own, Part part,
                  DType dtype, uint64_t chunk_bytes, double target) {
  const Chunks& chunks = FindChunks(part, dtype, chunk_bytes);
  CodecScratch scratch;
  Encoded by_peer, by_own;
  Versus(
      state, {.bytes = BytesOf(chunks), .target = target},
      [&] { EncodeAll(peer, chunks, scratch, by_peer); },
      [&] { EncodeAll(own, chunks, scratch, by_own); });
  Sizes(state, chunks, by_peer, by_own);
}

void DecodeVersus(benchmark::State& state, const Contestant& peer, const Contestant& own, Part part,
                  DType dtype, uint64_t chunk_bytes, double target) {
  const Chunks& chunks = FindChunks(part, dtype, chunk_bytes);
  CodecScratch scratch;
  Encoded by_peer, by_own;
  EncodeAll(peer, chunks, scratch, by_peer);
  EncodeAll(own, chunks, scratch, by_own);
  Bytes raw;
  Versus(
      state, {.bytes = BytesOf(chunks), .target = target},
      [&] { DecodeAll(peer, chunks, by_peer, scratch, raw); },
      [&] { DecodeAll(own, chunks, by_own, scratch, raw); });
  Sizes(state, chunks, by_peer, by_own);
}

// Measures K and V together; the peer is the engine's exhaustive choice.
void Encode(benchmark::State& state, Effort effort, Part part, DType dtype, uint64_t chunk_bytes,
            double target) {
  EncodeVersus(state, Level(Effort::kCompat), Level(effort), part, dtype, chunk_bytes, target);
}
void Decode(benchmark::State& state, Effort effort, Part part, DType dtype, uint64_t chunk_bytes,
            double target) {
  DecodeVersus(state, Level(Effort::kCompat), Level(effort), part, dtype, chunk_bytes, target);
}
void FastAgainstPlanes(benchmark::State& state, uint64_t chunk_bytes) {
  EncodeVersus(state, Peer("planes + zstd -3"), Level(Effort::kFast), Part::kK, DType::kBF16,
               chunk_bytes, 4.5);
}
void DecodeAgainstHuffman(benchmark::State& state, Part part, DType dtype, double target) {
  DecodeVersus(state, Peer("exponent"), Level(Effort::kDefault), part, dtype, kMiB, target);
}

// Both write into existing buffers, so that only the kernels are compared.
void Window4(benchmark::State& state, bool encode, double target) {
  const Bytes& raw = FindChunks(Part::kV, DType::kBF16, kMiB)[0].raw;
  const size_t count = raw.size() / 2;
  constexpr uint32_t kBase = 115;  // values around 1
  Bytes fields(count), nibbles(Window4NibbleBytes(count)), escapes(count), copy(raw.size());
  const size_t escaped =
      Window4Encode(raw.data(), count, kBase, fields.data(), nibbles.data(), escapes.data());
  Versus(
      state, {.bytes = raw.size(), .target = target, .repeats = 20},
      [&] {
        std::memcpy(copy.data(), raw.data(), raw.size());
        benchmark::DoNotOptimize(copy.data());
      },
      [&] {
        if (encode) {
          benchmark::DoNotOptimize(Window4Encode(raw.data(), count, kBase, fields.data(),
                                                 nibbles.data(), escapes.data()));
        } else {
          benchmark::DoNotOptimize(Window4Decode(fields.data(), nibbles.data(), count, kBase,
                                                 escapes.data(), escaped, copy.data()));
        }
      });
  state.counters["size_ratio"] =
      static_cast<double>(raw.size()) / static_cast<double>(count + nibbles.size() + escaped);
}

void TwoThreads(benchmark::State& state, DType dtype) {
  const Chunks& chunks = FindChunks(Part::kBoth, dtype, kMiB);
  const Contestant level = Level(Effort::kDefault);
  Encoded encoded(chunks.size());
  const auto encode = [&](ThreadPool& pool) {
    pool.ParallelFor(chunks.size(), [&](uint64_t i) {
      thread_local CodecScratch scratch;
      level.encode(chunks[i], scratch, encoded[i]);
    });
  };
  ThreadPool one(1), two(2);
  Versus(
      state, {.bytes = BytesOf(chunks), .target = 1.85, .clock = Clock::kWall},
      [&] { encode(one); }, [&] { encode(two); });
}

#define LEVELS(figure, name, ...) \
  BENCHMARK_CAPTURE(figure, name, __VA_ARGS__)->UseManualTime()->Unit(benchmark::kMillisecond)

LEVELS(Encode, default_f16_1MiB, Effort::kDefault, Part::kBoth, DType::kF16, kMiB, 1.3);
LEVELS(Encode, default_f16_32KiB, Effort::kDefault, Part::kBoth, DType::kF16, kSmall, 1.3);
LEVELS(Encode, default_bf16_1MiB, Effort::kDefault, Part::kBoth, DType::kBF16, kMiB, 6);
LEVELS(Encode, default_bf16_32KiB, Effort::kDefault, Part::kBoth, DType::kBF16, kSmall, 6);
LEVELS(Encode, high_K_f16_1MiB, Effort::kHigh, Part::kK, DType::kF16, kMiB, 0);
LEVELS(Encode, high_K_f16_32KiB, Effort::kHigh, Part::kK, DType::kF16, kSmall, 0);
LEVELS(FastAgainstPlanes, bf16_K_1MiB, kMiB);
LEVELS(FastAgainstPlanes, bf16_K_32KiB, kSmall);
LEVELS(Decode, default_K_f16_1MiB, Effort::kDefault, Part::kK, DType::kF16, kMiB, 0.40);
LEVELS(Decode, default_K_f16_32KiB, Effort::kDefault, Part::kK, DType::kF16, kSmall, 0.40);
LEVELS(Decode, default_K_bf16_1MiB, Effort::kDefault, Part::kK, DType::kBF16, kMiB, 0.75);
LEVELS(Decode, default_K_bf16_32KiB, Effort::kDefault, Part::kK, DType::kBF16, kSmall, 0.75);
LEVELS(Decode, default_V_f16_1MiB, Effort::kDefault, Part::kV, DType::kF16, kMiB, 0.9);
LEVELS(Decode, default_V_bf16_1MiB, Effort::kDefault, Part::kV, DType::kBF16, kMiB, 0.9);
LEVELS(Decode, high_K_f16_1MiB, Effort::kHigh, Part::kK, DType::kF16, kMiB, 0);
LEVELS(DecodeAgainstHuffman, K_f16, Part::kK, DType::kF16, 0.9);
LEVELS(DecodeAgainstHuffman, K_bf16, Part::kK, DType::kBF16, 0.9);
LEVELS(DecodeAgainstHuffman, V_f16, Part::kV, DType::kF16, 0.9);
LEVELS(DecodeAgainstHuffman, V_bf16, Part::kV, DType::kBF16, 0.9);
LEVELS(Window4, encode_bf16, true, 0.35);
LEVELS(Window4, decode_bf16, false, 0.50);
LEVELS(TwoThreads, default_f16, DType::kF16);
LEVELS(TwoThreads, default_bf16, DType::kBF16);

}  // namespace
}  // namespace kv::bench
