// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Estimates of a chunk's size from samples (floor.h): repeated values, the entropy of bytes in
// context, and what each level gains beyond it.

#include "lib/core/codec/floor.h"

#include <algorithm>
#include <array>
#include <bit>

#include "lib/core/codec/context/model.h"
#include "lib/core/codec/halves.h"

namespace kv {

// Counts sampled words that occurred before. Only some columns are sampled, since repeated values
// are mostly in the same column; the step is odd, because certain channels of every head may be the
// ones that repeat.
Repeats CountRepeats(ByteSpan raw, uint64_t row_bytes, DType dtype, uint64_t most) {
  constexpr uint64_t kWideRow = 1 << 10, kWord = 8, kPair = 2 * kWord;
  // Values are compared by sign, exponent and top mantissa bits, so that nearly equal rows count
  // too.
  const uint64_t value_mask = dtype == DType::kBF16  ? 0xfff0fff0fff0fff0u
                              : dtype == DType::kF16 ? 0xff00ff00ff00ff00u
                                                     : ~uint64_t{0};
  const bool is_short = raw.size() <= kShortChunk;
  const uint64_t usual = is_short || row_bytes < kWideRow ? 3 * kPair : 9 * kPair;
  const uint64_t step = std::max(usual, (raw.size() / most / kWord | 1) * kPair);
  const int table_bits = is_short ? 12 : 14;
  // A hash table of tags without chaining: a collision only costs an undercount or a rare false
  // match, and the estimate needs neither order nor positions.
  std::array<uint32_t, 1u << 14> seen;
  std::fill_n(seen.begin(), 1u << table_bits, 0);
  Repeats repeats;
  const auto look = [&](const std::byte* at) {
    const uint64_t word = LoadLE<uint64_t>(at) & value_mask;
    const uint64_t hash = (word ^ word >> 31) * 0x9e3779b97f4a7c15u;
    const auto tag = static_cast<uint32_t>(hash >> 20) | 1;
    uint32_t& slot = seen[hash >> (64 - table_bits)];
    const bool before = slot == tag;
    slot = tag;
    return before;
  };
  if (raw.size() < kPair) return repeats;
  row_bytes = std::clamp<uint64_t>(row_bytes, kWord, raw.size());
  for (uint64_t row = 0; row + row_bytes <= raw.size(); row += row_bytes) {
    for (uint64_t at = 0; at + kPair <= row_bytes; at += step) {
      const bool first = look(raw.data() + row + at), second = look(raw.data() + row + at + kWord);
      repeats.looked += 2;
      repeats.four += uint64_t{first} + uint64_t{second};
      repeats.eight += 2 * uint64_t{first && second};
    }
  }
  return repeats;
}

namespace {

constexpr uint64_t kMostSamples = 2048, kLeastSamples = 256, kSampleOneIn = 24;
constexpr uint64_t kMostRepeatWords = 384;
// Percent of a pair's size that is saved where the pair repeats: more than 100, because the sample
// misses some repeats.
constexpr uint64_t kSavedByRepeats = 130;
// Percent of the entropy that remains at each level (compat, fast, default, high, max), as
// measured; tests/core/codec/floor_test.cc checks it on real caches.
constexpr uint64_t kLeftOfHalves[] = {85, 96, 91, 80, 66}, kLeftOfOthers[] = {80, 95, 88, 85, 80},
                   // 8-bit floats: entropy of single bytes, without a context
    kLeftOfByteFloats[] = {80, 95, 80, 68, 58};

// Counts bytes by context. The first kTables - 1 contexts that occur have their own table, the
// others share the last one.
template <uint32_t kTables>
class ByteCounts {
 public:
  void Add(uint8_t byte, uint8_t context) {
    uint8_t& table = table_of_[context];
    if (table == 0) table = static_cast<uint8_t>(tables_ < kTables ? ++tables_ : kTables);
    ++counts_[table - 1u][byte];
    ++samples_;
  }
  // Returns the entropy of a byte in its context, in 2^-16 bits. Few samples understate it by 0.72
  // bits for each value of a table in all (Miller-Madow); the correction is added only where most
  // values occur.
  uint64_t Bits16() const {
    if (samples_ == 0) return 0;
    uint64_t bits = 0;
    for (uint32_t table = 0; table < tables_; ++table) {
      bits += EntropyBits16(counts_[table].data(), 256);
      const auto present = static_cast<uint64_t>(
          std::ranges::count_if(counts_[table], [](uint32_t count) { return count != 0; }));
      constexpr uint64_t kMost = 128, kLacking = 47274;
      if (present > kMost) bits += present * kLacking;
    }
    return std::min(bits / samples_, uint64_t{8} << 16);
  }

 private:
  std::array<uint8_t, 256> table_of_{};
  std::array<std::array<uint32_t, 256>, kTables> counts_{};
  uint32_t tables_ = 0;
  uint64_t samples_ = 0;
};

uint8_t ByteAt(ByteSpan raw, uint64_t at) { return static_cast<uint8_t>(raw[at]); }

// Returns the distance between samples; it is odd and therefore no multiple of a row.
uint64_t ChooseStep(uint64_t values) {
  return values / std::clamp(values / kSampleOneIn, kLeastSamples, kMostSamples) | 1;
}

// Returns the estimated bits per f16 or bf16 value, times 2^16.
template <bool kInContext>
uint64_t HalfBits16(ByteSpan raw, DType dtype, uint64_t columns) {
  const auto word_at = [&](uint64_t index) {
    const auto word = LoadLE<uint16_t>(raw.data() + 2 * index);
    return dtype == DType::kBF16 ? std::rotl(word, 1) : word;
  };
  constexpr uint32_t kContexts = 12;
  ByteCounts<1> low;
  ByteCounts<kInContext ? kContexts : 1> high;
  const uint64_t words = raw.size() / 2, step = ChooseStep(words);
  for (uint64_t i = kInContext ? columns : 0; i < words; i += step) {
    const uint16_t word = word_at(i);
    low.Add(static_cast<uint8_t>(word), 0);
    high.Add(static_cast<uint8_t>(word >> 8),
             kInContext ? static_cast<uint8_t>(word_at(i - columns) >> 8) : 0);
  }
  return low.Bits16() + high.Bits16();
}

// Returns the estimated bits per unit of any other type, times 2^16. Each byte of a value counts on
// its own. A block counts only its quants, which end every block and whose bytes are the largest
// power of two in its size.
uint64_t UnitBits16(ByteSpan raw, const DTypeInfo& info) {
  const uint64_t units = raw.size() / info.block_bytes;
  const uint64_t quants = std::bit_floor(info.block_bytes);
  const uint64_t step = ChooseStep(units);
  uint64_t bits = 0;
  if (IsBlockQuantised(info.dtype)) {
    ByteCounts<1> all;
    for (uint64_t unit = 0; unit < units; unit += step)
      all.Add(ByteAt(raw, (unit + 1) * info.block_bytes - 1 - unit % quants), 0);
    return quants * all.Bits16();
  }
  for (uint32_t byte = 0; byte < info.block_bytes; ++byte) {
    ByteCounts<1> one;
    for (uint64_t unit = 0; unit < units; unit += step)
      one.Add(ByteAt(raw, unit * info.block_bytes + byte), 0);
    bits += one.Bits16();
  }
  return bits;
}

}  // namespace

uint64_t EstimateFloor(const ChunkShape& shape, ByteSpan raw, Effort effort, bool beside) {
  const DTypeInfo& info = Info(shape.dtype);
  const uint64_t units = raw.size() / info.block_bytes;
  if (units < kLeastSamples) return 0;
  const ChunkGrid grid = FindGrid(shape, raw.size());
  const bool is_fast = effort == Effort::kFast, halves = IsHalfFloat(shape.dtype);
  uint64_t repeated = 0;  // share of repeated values, in percent
  // At the fast level only 8-bit values go through a search for matches.
  if (!is_fast || info.block_bytes == 1) {
    const Repeats repeats =
        CountRepeats(raw, raw.size() / grid.rows, shape.dtype, kMostRepeatWords);
    if (repeats.looked > 0) repeated = repeats.eight * kSavedByRepeats / repeats.looked;
    if (repeated >= 100) return 0;
  }
  const bool in_context = grid.rows > 1 && (beside || !is_fast);
  const auto half_bits16 = in_context ? HalfBits16<true> : HalfBits16<false>;
  const uint64_t bits16 =
      halves ? half_bits16(raw, shape.dtype, grid.columns) : UnitBits16(raw, info);
  const uint64_t* const of_levels = halves                            ? kLeftOfHalves
                                    : FindByteShift(shape.dtype) != 0 ? kLeftOfByteFloats
                                                                      : kLeftOfOthers;
  const uint64_t left = of_levels[static_cast<size_t>(effort)];
  // The shift by 8 first keeps the product within 64 bits.
  return units * (bits16 >> 8) / (uint64_t{8} << 8) * left / 100 * (100 - repeated) / 100;
}

}  // namespace kv
