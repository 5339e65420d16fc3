// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/contest.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace kv {
namespace {

double ThreadSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

const Bytes& EngineBytes(const ContestChunk& chunk) {
  return chunk.by_head.empty() ? chunk.raw : chunk.by_head;
}

ChunkShape EngineShape(const ContestChunk& chunk) {
  ChunkShape shape = chunk.shape;
  if (!chunk.by_head.empty()) shape.order = Order::kHeadTokenDim;
  return shape;
}

}  // namespace

std::vector<Contestant> LevelContestants() {
  std::vector<Contestant> levels;
  for (const Effort effort :
       {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    const bool engine = effort == Effort::kCompat;
    levels.push_back(
        {std::string(Name(effort)), false,
         [effort, engine](const ContestChunk& chunk, CodecScratch& scratch, EncodedChunk& out) {
           out = engine ? EncodeChunk(EngineShape(chunk), EngineBytes(chunk), effort, scratch)
                        : EncodeChunk(chunk.shape, chunk.raw, effort, scratch);
         },
         [engine](const ContestChunk& chunk, const EncodedChunk& encoded, CodecScratch& scratch,
                  std::span<std::byte> raw) {
           const ChunkShape shape = engine ? EngineShape(chunk) : chunk.shape;
           DecodeChunk(encoded.codec, shape, encoded.payload, raw, scratch);
         }});
  }
  return levels;
}

std::vector<ContestResult> RunContest(const std::vector<ContestChunk>& chunks,
                                      const std::vector<Contestant>& contestants, int rounds,
                                      Progress* progress) {
  size_t longest = 0;
  uint64_t total = 0;
  for (const ContestChunk& chunk : chunks) {
    longest = std::max(longest, chunk.raw.size());
    total += chunk.raw.size();
  }
  if (progress != nullptr) {
    progress->Begin(total * contestants.size() * static_cast<uint64_t>(rounds));
  }
  std::vector<ContestResult> results;
  for (const Contestant& one : contestants) {
    ContestResult& result = results.emplace_back();
    result.name = one.name;
    result.is_peer = one.is_peer;
  }
  CodecScratch scratch;
  std::vector<EncodedChunk> encoded(chunks.size());
  Bytes buffer(longest);
  for (int round = 0; round < rounds; ++round) {
    for (size_t c = 0; c < contestants.size(); ++c) {
      const Contestant& one = contestants[c];
      ContestResult& result = results[c];
      double begin = ThreadSeconds();
      for (size_t i = 0; i < chunks.size(); ++i) one.encode(chunks[i], scratch, encoded[i]);
      result.encode_seconds.push_back(ThreadSeconds() - begin);
      begin = ThreadSeconds();
      for (size_t i = 0; i < chunks.size(); ++i) {
        one.decode(chunks[i], encoded[i], scratch, std::span(buffer).first(chunks[i].raw.size()));
      }
      result.decode_seconds.push_back(ThreadSeconds() - begin);
      if (progress != nullptr) progress->Advance(total);
      if (round > 0) continue;
      for (size_t i = 0; i < chunks.size(); ++i) {
        const ContestChunk& chunk = chunks[i];
        const std::span<std::byte> raw = std::span(buffer).first(chunk.raw.size());
        one.decode(chunk, encoded[i], scratch, raw);
        if (std::memcmp(raw.data(), chunk.raw.data(), raw.size()) != 0 &&
            (chunk.by_head.empty() ||
             std::memcmp(raw.data(), chunk.by_head.data(), raw.size()) != 0)) {
          throw Error(Finding::kInternal, fmt::format("{} does not give back its input", one.name));
        }
        result.raw_bytes[chunk.is_value ? 1 : 0] += chunk.raw.size();
        result.stored_bytes[chunk.is_value ? 1 : 0] += encoded[i].payload.size();
      }
    }
  }
  for (ContestResult& result : results) {
    std::sort(result.encode_seconds.begin(), result.encode_seconds.end());
    std::sort(result.decode_seconds.begin(), result.decode_seconds.end());
  }
  return results;
}

}  // namespace kv
