// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>

#include "lib/engines/mnn/offline/offline.h"

namespace kv::mnn::offline::plane_coder_test {
namespace {

Bytes RandomBytes(size_t size, uint32_t seed, int values = 256) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() % static_cast<uint32_t>(values));
  return bytes;
}

uint8_t At(ByteSpan bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

constexpr Predictor kAll[] = {Predictor::kRaw, Predictor::kDeltaSeq, Predictor::kXorSeq,
                              Predictor::kPairDelta, Predictor::kPairDeltaDeltaSeq};

// Inverts a prediction value by value.
Bytes Restore(Predictor predictor, const PlaneShape& shape, Bytes data) {
  const size_t size = data.size();
  if (predictor == Predictor::kDeltaSeq || predictor == Predictor::kPairDeltaDeltaSeq) {
    for (size_t i = shape.row; i < size; ++i) {
      data[i] = static_cast<std::byte>(At(data, i) + At(data, i - shape.row));
    }
  }
  if (predictor == Predictor::kXorSeq) {
    for (size_t i = shape.row; i < size; ++i) data[i] ^= data[i - shape.row];
  }
  if (predictor == Predictor::kPairDelta || predictor == Predictor::kPairDeltaDeltaSeq) {
    for (size_t i = 0; i < size; ++i) {
      if (i % shape.dim % 2 == 1) data[i] = static_cast<std::byte>(At(data, i) + At(data, i - 1));
    }
  }
  return data;
}

uint64_t ZstdSize(ByteSpan bytes) {
  Zstd zstd;
  Bytes out(Zstd::Bound(bytes.size()));
  return zstd.Compress(bytes, out);
}

Bytes Predicted(Predictor predictor, const PlaneShape& shape, const std::byte* from) {
  Bytes out(shape.tokens * shape.row);
  Predict(predictor, shape, from, out.data());
  return out;
}

}  // namespace

TEST_CASE("every prediction can be undone, whatever the shape") {
  for (const PlaneShape shape : {PlaneShape{1, 8, 4}, PlaneShape{5, 12, 3}, PlaneShape{7, 64, 32},
                                 PlaneShape{3, 5, 1}, PlaneShape{64, 33, 11}}) {
    const Bytes plane = RandomBytes(shape.tokens * shape.row, 7);
    for (const Predictor predictor : kAll) {
      INFO(Name(predictor) << " tokens " << shape.tokens << " row " << shape.row);
      CHECK(Restore(predictor, shape, Predicted(predictor, shape, plane.data())) == plane);
    }
  }
}

TEST_CASE("prediction looks one token back and one dim left, never across heads") {
  const Bytes plane = {std::byte{10}, std::byte{11}, std::byte{12}, std::byte{20}, std::byte{22},
                       std::byte{21}, std::byte{13}, std::byte{11}, std::byte{2},  std::byte{20},
                       std::byte{22}, std::byte{25}};  // 2 tokens, 2 heads of 3
  const PlaneShape shape = {2, 6, 3};
  const auto values = [&](Predictor predictor) {
    std::vector<int> out;
    for (const std::byte b : Predicted(predictor, shape, plane.data())) {
      out.push_back(static_cast<int>(b));
    }
    return out;
  };
  CHECK(values(Predictor::kDeltaSeq) ==
        std::vector<int>{10, 11, 12, 20, 22, 21, 3, 0, 246, 0, 0, 4});
  CHECK(values(Predictor::kXorSeq) == std::vector<int>{10, 11, 12, 20, 22, 21, 7, 0, 14, 0, 0, 12});
  CHECK(values(Predictor::kPairDelta) ==
        std::vector<int>{10, 1, 12, 20, 2, 21, 13, 254, 2, 20, 2, 25});
  CHECK(values(Predictor::kPairDeltaDeltaSeq) ==
        std::vector<int>{10, 1, 12, 20, 2, 21, 3, 253, 246, 0, 0, 4});
}

TEST_CASE("bits are shuffled plane by plane, also where planes end inside a byte") {
  for (const size_t size : {1u, 7u, 8u, 16u, 24u, 100u, 1000u}) {
    const Bytes from = RandomBytes(size, static_cast<uint32_t>(size));
    Bytes to(size);
    BitShuffle(from.data(), size, to.data());
    size_t wrong = 0;
    for (size_t b = 0; b < 8; ++b) {
      for (size_t i = 0; i < size; ++i) {
        const size_t bit = b * size + i;
        wrong += (At(to, bit / 8) >> bit % 8 & 1) != (At(from, i) >> b & 1);
      }
    }
    INFO(size);
    CHECK(wrong == 0);
  }
}

TEST_CASE("a plane costs its best blocks compressed together, a byte per block and eight") {
  PlaneCoder coder;
  Options options;
  options.block_tokens = 4;
  const PlaneShape shape = {10, 48, 16};  // 10 tokens are blocks of 4, 4 and 2
  const Bytes plane = RandomBytes(shape.tokens * shape.row, 3, 5);
  for (const Stream stream : {kKHi, kVLo}) {
    Bytes merged;
    std::map<Predictor, uint64_t> expected;
    for (const Predictor predictor : options.predictors[stream]) expected[predictor] = 0;
    for (uint64_t begin = 0; begin < shape.tokens; begin += 4) {
      const PlaneShape block = {std::min<uint64_t>(4, shape.tokens - begin), 48, 16};
      Bytes best;
      Predictor chosen = Predictor::kRaw;
      for (const Predictor predictor : options.predictors[stream]) {
        const Bytes payload = Predicted(predictor, block, plane.data() + begin * 48);
        if (!best.empty() && ZstdSize(payload) >= ZstdSize(best)) continue;
        best = payload;
        chosen = predictor;
      }
      ++expected[chosen];
      merged.insert(merged.end(), best.begin(), best.end());
    }
    std::map<Predictor, uint64_t> counts;
    CHECK(coder.Size(plane, shape, options, stream, counts) == ZstdSize(merged) + 3 + 8);
    CHECK(counts == expected);
  }
}

TEST_CASE("of predictors that write the same bytes the first one counts") {
  PlaneCoder coder;
  Options options;
  options.predictors[kKHi] = {Predictor::kXorSeq, Predictor::kRaw, Predictor::kPairDeltaDeltaSeq,
                              Predictor::kPairDelta};
  std::map<Predictor, uint64_t> counts;
  const Bytes plane = RandomBytes(64, 1);
  // One token and heads of one dim: all four planes are raw.
  CHECK(coder.Size(plane, {1, 64, 1}, options, kKHi, counts) == ZstdSize(plane) + 1 + 8);
  CHECK(counts[Predictor::kXorSeq] == 1);
  CHECK(counts.size() == 4);
}

TEST_CASE("the legacy codec predicts the high plane only and has no overhead") {
  PlaneCoder coder;
  Options options;
  options.codec = CodecMode::kLegacy;
  const PlaneShape shape = {6, 32, 8};
  const Bytes plane = RandomBytes(shape.tokens * shape.row, 9, 7);
  std::map<Predictor, uint64_t> high, low;
  CHECK(coder.Size(plane, shape, options, kVHi, high) ==
        ZstdSize(Predicted(Predictor::kDeltaSeq, shape, plane.data())));
  CHECK(coder.Size(plane, shape, options, kVLo, low) == ZstdSize(plane));
  CHECK(high == std::map<Predictor, uint64_t>{{Predictor::kDeltaSeq, 1}});
  CHECK(low == std::map<Predictor, uint64_t>{{Predictor::kRaw, 1}});
}

}  // namespace kv::mnn::offline::plane_coder_test
