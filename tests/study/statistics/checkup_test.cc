// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/statistics/checkup.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "lib/core/snapshot/layout.h"

namespace kv::checkup_test {

// Makes layers with only K in f16, each filled with its own pattern.
Snapshot Layers(std::vector<Bytes>& bytes, uint32_t layers, uint64_t tokens) {
  constexpr uint32_t kDim = 64;
  Snapshot snapshot;
  for (uint32_t i = 0; i < layers; ++i) {
    Bytes& values = bytes.emplace_back(tokens * kDim * 2);
    for (size_t at = 0; at < values.size(); at += 2) {
      values[at] = static_cast<std::byte>(at / 2 * (2 * i + 1));
      values[at + 1] = std::byte{0x3c};
    }
    LayerKv layer;
    layer.index = i;
    layer.k = ContiguousTensor(values.data(), DType::kF16, tokens, 1, kDim, Order::kTokenHeadDim);
    snapshot.layers.push_back(std::move(layer));
  }
  return snapshot;
}

TEST_CASE("a small cache is looked at whole, a large one in a sample of bounded size") {
  ThreadPool pool(2);
  std::vector<Bytes> bytes;
  const Checkup small = CheckUp(Layers(bytes, 3, 100), Effort::kFast, pool);
  CHECK(small.whole());
  CHECK(small.sound());
  CHECK(small.values == 3 * 100 * 64);
  CHECK(small.ratio() > 1);
  bytes.clear();
  const Checkup large = CheckUp(Layers(bytes, 40, 4000), Effort::kFast, pool);
  CHECK(large.bytes > kCheckupBytes);
  CHECK_FALSE(large.whole());
  CHECK(large.seen_bytes <= kCheckupBytes);
  CHECK(large.seen_layers == 32);
  CHECK(large.sound());
}

TEST_CASE("values that are not finite, zeros alone and equal keys are found where they are") {
  ThreadPool pool(1);
  std::vector<Bytes> bytes;
  const Snapshot snapshot = Layers(bytes, 5, 50);
  bytes[1][1] = std::byte{0x7c};  // infinity
  bytes[1][0] = std::byte{0};
  bytes[1][3] = std::byte{0x7e};  // NaN
  std::fill(bytes[2].begin(), bytes[2].end(), std::byte{0});
  std::copy(bytes[0].begin(), bytes[0].end(), bytes[4].begin());
  const Checkup found = CheckUp(snapshot, Effort::kFast, pool);
  CHECK(found.infinities == 1);
  CHECK(found.nans == 1);
  REQUIRE(found.not_finite.size() == 1);
  CHECK(found.not_finite[0].layer == 1);
  REQUIRE(found.zeros.size() == 1);
  CHECK(found.zeros[0].layer == 2);
  REQUIRE(found.same_keys.size() == 1);
  CHECK(found.same_keys[0] == std::pair<uint32_t, uint32_t>(0, 4));
}

TEST_CASE("tensors without bytes count as not seen") {
  ThreadPool pool(1);
  std::vector<Bytes> bytes;
  Snapshot snapshot = Layers(bytes, 2, 10);
  for (LayerKv& layer : snapshot.layers) layer.k.pieces[0].data = nullptr;
  const Checkup found = CheckUp(snapshot, Effort::kFast, pool);
  CHECK(found.seen_bytes == 0);
  CHECK(found.sound());
  CHECK_FALSE(found.whole());
}

}  // namespace kv::checkup_test
