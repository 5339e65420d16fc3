// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/bench/contest.h"

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

// As the engine does it: head by head.
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
    throw Error(Finding::kInternal, fmt::format("{} does not give back its input", one.name));
  }
}

}  // namespace

std::vector<Contestant> LevelContestants() {
  std::vector<Contestant> levels;
  for (const Effort effort :
       {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    levels.push_back(
        {std::string(Name(effort)), false,
         [effort](const ContestChunk& chunk, CodecScratch& scratch, ContestPayload& out) {
           if (effort == Effort::kCompat) return EncodeAsEngine(chunk, scratch, out);
           out.head = chunk.head;
           static_cast<EncodedChunk&>(out) =
               EncodeRows(out.head, chunk.raw, chunk.order.get(), effort, scratch);
         },
         [](const ContestChunk& chunk, const ContestPayload& encoded, CodecScratch& scratch,
            std::span<std::byte> raw) {
           const RowOrder* order = encoded.head.by_cells ? chunk.order.get() : nullptr;
           DecodeRows(encoded.codec, encoded.head, encoded.payload, order, raw, scratch);
         }});
  }
  return levels;
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
