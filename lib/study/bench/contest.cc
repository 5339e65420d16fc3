// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/bench/contest.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>

// The peers of a contest, called as their users would call them.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/core/codec/planes/gear.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/bench/contest.h"

namespace kv {
namespace {

[[noreturn]] void Fail(std::string_view name) {
  throw Error(Finding::kInternal, "{} failed", name);
}

Contestant Copy() {
  return {"memcpy", true,
          [](const ContestChunk& chunk, CodecScratch&, ContestPayload& out) {
            out.payload.resize(chunk.raw.size());
            std::memcpy(out.payload.data(), chunk.raw.data(), chunk.raw.size());
          },
          [](const ContestChunk&, const ContestPayload& encoded, CodecScratch&,
             std::span<std::byte> raw) {
            std::memcpy(raw.data(), encoded.payload.data(), raw.size());
          }};
}

uint32_t ElementBytes(const ContestChunk& chunk) {
  const DTypeInfo& info = Info(chunk.dtype());
  return info.block_elements == 1 ? info.block_bytes : 1;
}

// Splits elements into byte planes, one after another.
void Split(ByteSpan raw, uint32_t planes, std::span<std::byte> out) {
  const size_t words = raw.size() / planes;
  if (planes == 2) return SplitPlanes2(raw.data(), words, out.data(), out.data() + words);
  for (uint32_t b = 0; b < planes; ++b) {
    for (size_t i = 0; i < words; ++i) out[b * words + i] = raw[i * planes + b];
  }
}

void Join(ByteSpan in, uint32_t planes, std::span<std::byte> raw) {
  const size_t words = raw.size() / planes;
  if (planes == 2) return JoinPlanes2(in.data(), in.data() + words, words, raw.data());
  for (uint32_t b = 0; b < planes; ++b) {
    for (size_t i = 0; i < words; ++i) raw[i * planes + b] = in[b * words + i];
  }
}

// Returns zstd on the bytes, or on each plane in its own frame.
Contestant ZstdAt(int level, bool split) {
  const std::string name = fmt::format("{}zstd -{}", split ? "byte planes + " : "", level);
  return {
      name, true,
      [=](const ContestChunk& chunk, CodecScratch& scratch, ContestPayload& out) {
        const uint32_t planes = split ? ElementBytes(chunk) : 1;
        const size_t size = chunk.raw.size(), step = size / planes;
        ByteSpan in = chunk.raw;
        if (planes > 1) {
          const std::span<std::byte> split_bytes = scratch.planes.Get(size).first(size);
          Split(chunk.raw, planes, split_bytes);
          in = split_bytes;
        }
        out.payload.resize(planes * (4 + Zstd::Bound(step)));
        size_t at = 0;
        for (uint32_t b = 0; b < planes; ++b) {
          const size_t bytes = scratch.zstd.Compress(in.subspan(b * step, step),
                                                     std::span(out.payload).subspan(at + 4), level);
          if (bytes == 0) Fail(name);
          StoreLE(out.payload.data() + at, static_cast<uint32_t>(bytes));
          at += 4 + bytes;
        }
        out.payload.resize(at);
      },
      [=](const ContestChunk& chunk, const ContestPayload& encoded, CodecScratch& scratch,
          std::span<std::byte> raw) {
        const uint32_t planes = split ? ElementBytes(chunk) : 1;
        const size_t step = raw.size() / planes;
        const std::span<std::byte> out =
            planes == 1 ? raw : scratch.planes.Get(raw.size()).first(raw.size());
        ByteReader reader(encoded.payload);
        for (uint32_t b = 0; b < planes; ++b) {
          const uint32_t bytes = reader.U32("length");
          if (!scratch.zstd.Decompress(reader.Take(bytes, "frame"), out.subspan(b * step, step))) {
            Fail(name);
          }
        }
        if (planes > 1) Join(out, planes, raw);
      }};
}

// Moves the sign to the low end, codes exponents by Huffman, and stores the rest unless it shrinks.
Contestant ExponentHuffman() {
  const char* name = "exponent Huffman (as ZipNN)";
  return {name, true,
          [](const ContestChunk& chunk, CodecScratch& scratch, ContestPayload& out) {
            const size_t size = chunk.raw.size();
            const std::span<std::byte> words = scratch.predicted.Get(size).first(size);
            Rotl16(chunk.raw.data(), size / 2, words.data());
            out.payload.clear();
            EncodeGear(GearKind::kTwoPlanes, words, {.predictors = {}, .literals = true}, scratch,
                       out.payload);
          },
          [](const ContestChunk&, const ContestPayload& encoded, CodecScratch& scratch,
             std::span<std::byte> raw) {
            DecodeGear(GearKind::kTwoPlanes, encoded.payload, raw, scratch);
            Rotr16(raw.data(), raw.size() / 2, raw.data());
          }};
}

// The two functions of libblosc's interface that are needed.
struct Blosc {
  using CompressFunction = int (*)(int, int, size_t, size_t, const void*, void*, size_t,
                                   const char*, size_t, int);
  using DecompressFunction = int (*)(const void*, void*, size_t, int);
  CompressFunction compress = nullptr;
  DecompressFunction decompress = nullptr;
};

const Blosc& LoadBlosc() {
  static const Blosc blosc = [] {
    Blosc found;
#ifndef KVTOOL_STATIC  // a static program cannot load libraries
    // The library stays loaded.
    void* library = ::dlopen("libblosc.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return found;
    found.compress =
        reinterpret_cast<Blosc::CompressFunction>(::dlsym(library, "blosc_compress_ctx"));
    found.decompress =
        reinterpret_cast<Blosc::DecompressFunction>(::dlsym(library, "blosc_decompress_ctx"));
#endif
    return found;
  }();
  return blosc;
}

Contestant BloscWith(const char* compressor, int level, int shuffle) {
  const std::string name =
      fmt::format("blosc {}shuffle + {} -{}", shuffle == 2 ? "bit" : "", compressor, level);
  return {name, true,
          [=](const ContestChunk& chunk, CodecScratch&, ContestPayload& out) {
            out.payload.resize(chunk.raw.size() + 16);
            const int bytes = LoadBlosc().compress(
                level, shuffle, ElementBytes(chunk), chunk.raw.size(), chunk.raw.data(),
                out.payload.data(), out.payload.size(), compressor, 0, 1);
            if (bytes <= 0) Fail(name);
            out.payload.resize(static_cast<size_t>(bytes));
          },
          [=](const ContestChunk&, const ContestPayload& encoded, CodecScratch&,
              std::span<std::byte> raw) {
            const int bytes =
                LoadBlosc().decompress(encoded.payload.data(), raw.data(), raw.size(), 1);
            if (bytes < 0 || static_cast<size_t>(bytes) != raw.size()) Fail(name);
          }};
}

double ThreadSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Encodes head by head, as the engine does.
void EncodeAsEngine(const ContestChunk& chunk, CodecScratch& scratch, ContestPayload& out) {
  out.head = chunk.head;
  if (!chunk.by_head.empty()) out.head.order = Order::kHeadTokenDim;
  static_cast<EncodedChunk&>(out) =
      EncodeChunk(out.head.shape(), chunk.by_head.empty() ? chunk.raw : chunk.by_head,
                  Effort::kCompat, scratch);
}

double LastRound(const ContestTimes& times) {
  return times.encode_seconds.back() + times.decode_seconds.back();
}

// Encodes and decodes all of K, then all of V.
void RunRound(const std::vector<ContestChunk>& chunks, const Contestant& one, CodecScratch& scratch,
              std::vector<ContestPayload>& encoded, Bytes& buffer, ContestResult& result) {
  ContestTimes& both = result.both;
  both.encode_seconds.push_back(0);
  both.decode_seconds.push_back(0);
  for (const bool is_value : {false, true}) {
    ContestTimes& part = result.parts[is_value ? 1 : 0];
    const double begin = ThreadSeconds();
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].is_value() == is_value) one.encode(chunks[i], scratch, encoded[i]);
    }
    const double middle = ThreadSeconds();
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].is_value() != is_value) continue;
      one.decode(chunks[i], encoded[i], scratch, std::span(buffer).first(chunks[i].raw.size()));
    }
    part.encode_seconds.push_back(middle - begin);
    part.decode_seconds.push_back(ThreadSeconds() - middle);
    both.encode_seconds.back() += part.encode_seconds.back();
    both.decode_seconds.back() += part.decode_seconds.back();
  }
}

void Prove(const ContestChunk& chunk, const Contestant& one, const ContestPayload& encoded,
           CodecScratch& scratch, Bytes& buffer) {
  const std::span<std::byte> raw = std::span(buffer).first(chunk.raw.size());
  one.decode(chunk, encoded, scratch, raw);
  const auto equals = [&](const Bytes& bytes) {
    return bytes.size() == raw.size() && std::memcmp(raw.data(), bytes.data(), raw.size()) == 0;
  };
  if (!equals(chunk.raw) && !equals(chunk.by_head)) {
    throw Error(Finding::kInternal, "{} does not give back its input", one.name);
  }
}

}  // namespace

std::vector<Contestant> PeerContestants(bool slow) {
  std::vector<Contestant> peers = {Copy(), ZstdAt(3, false), ZstdAt(1, true), ZstdAt(3, true)};
  if (slow) peers.push_back(ZstdAt(19, true));
  peers.push_back(ExponentHuffman());
  if (LoadBlosc().compress != nullptr && LoadBlosc().decompress != nullptr) {
    peers.push_back(BloscWith("lz4", 5, 2));
    peers.push_back(BloscWith("zstd", 3, 1));
  }
  return peers;
}

namespace {

Contestant LevelContestant(Effort effort, const std::shared_ptr<const Profile>& profile) {
  return {fmt::format("{}{}", Name(effort), profile == nullptr ? "" : "-profile"), false,
          [=](const ContestChunk& chunk, CodecScratch& scratch, ContestPayload& out) {
            if (effort == Effort::kCompat) return EncodeAsEngine(chunk, scratch, out);
            out.head = chunk.head;
            static_cast<EncodedChunk&>(out) =
                EncodeRows(out.head, chunk.raw, chunk.order.get(), effort, scratch, profile.get());
          },
          [=](const ContestChunk& chunk, const ContestPayload& encoded, CodecScratch& scratch,
              std::span<std::byte> raw) {
            const RowOrder* order = encoded.head.by_cells ? chunk.order.get() : nullptr;
            DecodeRows(encoded.codec, encoded.head, encoded.payload, order, raw, scratch,
                       {.profile = profile.get()});
          }};
}

}  // namespace

std::vector<Contestant> LevelContestants(std::span<const Effort> levels,
                                         const std::shared_ptr<const Profile>& profile) {
  std::vector<Contestant> contestants;
  for (const Effort effort : levels) {
    contestants.push_back(LevelContestant(effort, nullptr));
    if (profile != nullptr && effort >= Effort::kDefault)
      contestants.push_back(LevelContestant(effort, profile));
  }
  return contestants;
}

std::vector<Contestant> BlockContestants() {
  std::vector<Contestant> levels;
  for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    levels.push_back(
        {fmt::format("{}-blocks", Name(effort)), false,
         [effort](const ContestChunk& chunk, CodecScratch& scratch, ContestPayload& out) {
           out.head = chunk.head;
           static_cast<EncodedChunk&>(out) =
               EncodeChunkInBlocks(out.head.shape(), chunk.raw, effort, scratch);
         },
         [](const ContestChunk&, const ContestPayload& encoded, CodecScratch& scratch,
            std::span<std::byte> raw) {
           DecodeChunk(encoded.codec, encoded.head.shape(), encoded.payload, raw, scratch);
         }});
  }
  return levels;
}

ContestChunk MakeContestChunk(const KvTensor& tensor, uint32_t layer, bool is_value, uint64_t begin,
                              uint64_t count, const RowOrders& orders) {
  const ChunkShape shape{tensor.dtype, count, tensor.heads, tensor.units_per_head(),
                         Order::kTokenHeadDim};
  ContestChunk chunk;
  chunk.head = HeadOfRows(is_value, shape, tensor.heads_known);
  chunk.head.layer = layer;
  chunk.raw = Gather(tensor, begin, count, Order::kTokenHeadDim);
  if (tensor.heads > 1) chunk.by_head = Gather(tensor, begin, count, Order::kHeadTokenDim);
  if (!orders.empty()) chunk.order = orders.Of(layer, begin, count);
  return chunk;
}

std::vector<ContestResult> RunContest(const std::vector<ContestChunk>& chunks,
                                      const std::vector<Contestant>& contestants, int rounds,
                                      double patience, Progress* progress) {
  size_t longest = 0;
  uint64_t total = 0;
  for (const ContestChunk& chunk : chunks) {
    longest = std::max(longest, chunk.raw.size());
    total += chunk.raw.size();
  }
  if (progress != nullptr) {
    progress->Begin(total * contestants.size() * static_cast<uint64_t>(rounds + 1));
  }
  std::vector<ContestResult> results;
  for (const Contestant& one : contestants) {
    ContestResult& result = results.emplace_back();
    result.name = one.name;
    result.is_peer = one.is_peer;
  }
  CodecScratch scratch;
  std::vector<ContestPayload> encoded(chunks.size());
  std::vector<uint64_t> first_bytes(chunks.size());
  Bytes buffer(longest);
  for (int round = 0; round <= rounds; ++round) {
    for (size_t c = 0; c < contestants.size(); ++c) {
      ContestResult& result = results[c];
      if (progress != nullptr) progress->Advance(total);
      if (round > 0 && !result.both.encode_seconds.empty() && LastRound(result.both) > patience) {
        continue;
      }
      RunRound(chunks, contestants[c], scratch, encoded, buffer, result);
      if (round > 0) continue;
      if (LastRound(result.both) <= patience) {
        result.both = {};
        for (ContestPart& part : result.parts) static_cast<ContestTimes&>(part) = {};
      }
      for (size_t i = 0; i < chunks.size(); ++i) {
        Prove(chunks[i], contestants[c], encoded[i], scratch, buffer);
        ContestPart& part = result.parts[chunks[i].is_value() ? 1 : 0];
        const uint64_t bytes = encoded[i].payload.size();
        if (c == 0) first_bytes[i] = bytes;
        part.raw_bytes += chunks[i].raw.size();
        part.stored_bytes += bytes;
        part.worst_chunk = std::max(
            part.worst_chunk, static_cast<double>(bytes) / static_cast<double>(first_bytes[i]));
      }
    }
  }
  for (ContestResult& result : results) {
    for (ContestTimes* times : {static_cast<ContestTimes*>(&result.parts[0]),
                                static_cast<ContestTimes*>(&result.parts[1]), &result.both}) {
      std::sort(times->encode_seconds.begin(), times->encode_seconds.end());
      std::sort(times->decode_seconds.begin(), times->decode_seconds.end());
    }
  }
  return results;
}

}  // namespace kv
