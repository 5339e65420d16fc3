// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/bench/contest.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

namespace kv::contest_test {
namespace {

ContestChunk ChunkOf(bool is_value, std::byte filling) {
  ContestChunk chunk;
  chunk.head = HeadOfRows(is_value, {DType::kF16, 4, 1, 8, Order::kTokenHeadDim}, true);
  chunk.raw.assign(64, filling);
  return chunk;
}

// Copies, and claims that this many bytes were needed.
Contestant Claiming(std::string name, size_t k_bytes, size_t v_bytes) {
  return {std::move(name), true,
          [=](const ContestChunk& chunk, CodecScratch&, ContestPayload& out) {
            out.payload.assign(chunk.is_value() ? v_bytes : k_bytes, chunk.raw[0]);
          },
          [](const ContestChunk&, const ContestPayload& encoded, CodecScratch&,
             std::span<std::byte> raw) {
            std::memset(raw.data(), std::to_integer<int>(encoded.payload[0]), raw.size());
          }};
}

}  // namespace

TEST_CASE("a contest counts K and V apart, and each chunk against the first contestant's",
          "[archive]") {
  const std::vector<ContestChunk> chunks = {
      ChunkOf(false, std::byte{1}), ChunkOf(true, std::byte{2}), ChunkOf(false, std::byte{3})};
  const std::vector<Contestant> both = {Claiming("first", 40, 20), Claiming("second", 30, 25)};
  const auto results = RunContest(chunks, both, 3, INFINITY, nullptr);
  REQUIRE(results.size() == 2);
  const ContestResult& second = results[1];
  CHECK(second.name == "second");
  CHECK(second.parts[0].raw_bytes == 128);
  CHECK(second.parts[0].stored_bytes == 60);
  CHECK(second.parts[0].worst_chunk == Approx(0.75));
  CHECK(second.parts[1].raw_bytes == 64);
  CHECK(second.parts[1].worst_chunk == Approx(1.25));
  CHECK(second.stored_bytes() == 85);
  CHECK(results[0].parts[1].worst_chunk == 1);
  for (const ContestTimes* times :
       {static_cast<const ContestTimes*>(&second.parts[0]),
        static_cast<const ContestTimes*>(&second.parts[1]), &second.both}) {
    CHECK(times->encode_seconds.size() == 3);
    CHECK(std::is_sorted(times->decode_seconds.begin(), times->decode_seconds.end()));
  }
}

TEST_CASE("who tries the patience of a contest has one round", "[archive]") {
  const std::vector<ContestChunk> chunks = {ChunkOf(false, std::byte{7})};
  const auto results = RunContest(chunks, {Claiming("slow", 8, 8)}, 5, -1, nullptr);
  CHECK(results[0].both.encode_seconds.size() == 1);
  CHECK(results[0].parts[0].decode_seconds.size() == 1);
  CHECK(results[0].parts[0].stored_bytes == 8);
}

TEST_CASE("a contest does not time what does not give back its input", "[archive]") {
  ContestChunk chunk = ChunkOf(true, std::byte{7});
  chunk.raw[5] = std::byte{8};
  CHECK_THROWS_AS(RunContest({chunk}, {Claiming("lossy", 1, 1)}, 1, INFINITY, nullptr), Error);
  // The engine's order of the same values is another input.
  chunk.by_head.assign(64, std::byte{7});
  CHECK(RunContest({chunk}, {Claiming("by head", 1, 1)}, 1, INFINITY, nullptr)[0].stored_bytes() ==
        1);
}

TEST_CASE("levels and peers give back chunks of every dtype", "[archive]") {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0}) {
    ContestChunk chunk;
    const uint64_t units = 2;
    const ChunkShape shape{dtype, 40, 2, units * 32 / Info(dtype).block_elements,
                           Order::kTokenHeadDim};
    chunk.head = HeadOfRows(false, shape, true);
    chunk.raw.resize(chunk.head.raw_bytes);
    uint32_t state = 1;
    for (std::byte& byte : chunk.raw) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<std::byte>(state >> 28);
    }
    std::vector<Contestant> all = LevelContestants();
    for (Contestant& level : BlockContestants()) all.push_back(std::move(level));
    for (Contestant& peer : PeerContestants(true)) {
      const bool halves = dtype == DType::kF16 || dtype == DType::kBF16;
      if (halves || peer.name.find("exponent") == std::string::npos) all.push_back(std::move(peer));
    }
    const auto results = RunContest({chunk}, all, 1, INFINITY, nullptr);
    for (const ContestResult& result : results) {
      INFO(result.name);
      CHECK(result.raw_bytes() == chunk.raw.size());
      CHECK(result.stored_bytes() > 0);
    }
    CHECK(results[0].name == "compat");
  }
}

}  // namespace kv::contest_test
