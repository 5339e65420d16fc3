// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/histogram.h"

#include <algorithm>

#include "lib/core/base/bytes.h"

namespace kv {
namespace {

constexpr size_t kTables = 4;
// The tables count in 32 bits; a round is short enough for them.
constexpr size_t kRoundBytes = size_t{1} << 30;

void CountRound(const std::byte* from, size_t size, uint32_t tables[kTables][256]) noexcept {
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const uint64_t eight = LoadLE<uint64_t>(from + i);
    for (size_t b = 0; b < 8; ++b) ++tables[b % kTables][eight >> (8 * b) & 0xff];
  }
  for (; i < size; ++i) ++tables[0][static_cast<size_t>(from[i])];
}

}  // namespace

void CountBytes(const std::byte* from, size_t size, uint64_t counts[256]) noexcept {
  while (size > 0) {
    const size_t round = std::min(size, kRoundBytes);
    uint32_t tables[kTables][256] = {};
    CountRound(from, round, tables);
    for (size_t value = 0; value < 256; ++value) {
      for (const auto& table : tables) counts[value] += table[value];
    }
    from += round;
    size -= round;
  }
}

void CountWords(const std::byte* from, size_t words, uint64_t counts[65536]) noexcept {
  // Words of a tensor spread over thousands of counters: neighbours rarely meet.
  for (size_t i = 0; i < words; ++i) ++counts[LoadLE<uint16_t>(from + 2 * i)];
}

}  // namespace kv
