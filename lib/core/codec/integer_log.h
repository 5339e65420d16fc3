// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <bit>
#include <cstdint>

// log2 with 16 fractional bits. Costs are integers, so that the encoder's choices, and with them
// the bytes it writes, do not depend on how a compiler orders float operations.
namespace kv {

constexpr uint32_t kLogBits = 12;
struct LogTable {
  std::array<uint32_t, 1u << kLogBits> log, times;  // log2(n), n * log2(n)
  LogTable();
};
extern const LogTable kLogTable;

inline uint64_t Log2Of(uint64_t n) {
  if (n < kLogTable.log.size()) return kLogTable.log[n];
  const auto shift = static_cast<uint32_t>(std::bit_width(n)) - kLogBits;
  return kLogTable.log[n >> shift] + (uint64_t{shift} << 16);
}

// n * log2(n).
inline uint64_t NLog2Of(uint64_t n) {
  return n < kLogTable.times.size() ? kLogTable.times[n] : n * Log2Of(n);
}

}  // namespace kv
