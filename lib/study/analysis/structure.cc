// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/structure.h"

#include <algorithm>
#include <bit>

#include "lib/core/base/hash.h"
#include "lib/core/kernels/convert.h"

namespace kv::analysis {
namespace {

// Shorter rows repeat by chance, and their hashes would take more room than they do.
constexpr uint64_t kLeastRow = 8;

}  // namespace

StructureFinder::StructureFinder(uint64_t units, uint32_t unit_bytes)
    : units_(units), unit_bytes_(unit_bytes) {
  found_.channels = units;
}

void StructureFinder::Add(ByteSpan rows, uint64_t tokens) {
  const uint64_t row_bytes = units_ * unit_bytes_;
  KV_ASSERT(rows.size() == tokens * row_bytes);
  if (tokens == 0) return;
  if (found_.tokens == 0) {
    first_.assign(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(row_bytes));
    differs_.resize(row_bytes);
  }
  for (uint64_t t = 0; t < tokens; ++t) {
    const ByteSpan row = rows.subspan(t * row_bytes, row_bytes);
    std::byte any{0};
    for (uint64_t i = 0; i < row_bytes; ++i) {
      differs_[i] |= row[i] ^ first_[i];
      any |= row[i];
    }
    if (any == std::byte{0}) {
      ++found_.zero_rows;
      ++found_.trailing_zero_rows;
      continue;
    }
    found_.trailing_zero_rows = 0;
    if (row_bytes >= kLeastRow) row_hashes_.push_back(Hash64(row));
  }
  found_.tokens += tokens;
}

Structure StructureFinder::Finish() const {
  Structure found = found_;
  std::vector<uint64_t> hashes = row_hashes_;
  std::sort(hashes.begin(), hashes.end());
  const auto distinct = std::unique(hashes.begin(), hashes.end()) - hashes.begin();
  found.repeated_rows = hashes.size() - static_cast<uint64_t>(distinct);
  // One token is no evidence of anything constant.
  if (found.tokens < 2) return found;
  const auto is_zero = [&](const Bytes& bytes, uint64_t unit) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(unit * unit_bytes_);
    return std::all_of(begin, begin + unit_bytes_, [](std::byte b) { return b == std::byte{0}; });
  };
  for (uint64_t unit = 0; unit < units_; ++unit) {
    if (!is_zero(differs_, unit)) continue;
    ++found.constant_channels;
    found.zero_channels += is_zero(first_, unit);
  }
  return found;
}

void CountNarrow(ByteSpan floats, Narrowness& narrowness) {
  constexpr size_t kStep = 4096;
  float values[kStep], back[kStep];
  std::byte halves[2 * kStep];
  const size_t count = floats.size() / 4;
  for (size_t begin = 0; begin < count; begin += kStep) {
    const size_t n = std::min(kStep, count - begin);
    std::memcpy(values, floats.data() + 4 * begin, 4 * n);
    FloatToHalf(values, halves, n);
    HalfToFloat(halves, back, n);
    for (size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(values[i]);
      narrowness.exact_f16 += bits == std::bit_cast<uint32_t>(back[i]);
      narrowness.exact_bf16 += (bits & 0xffff) == 0;
    }
  }
  narrowness.values += count;
}

}  // namespace kv::analysis
