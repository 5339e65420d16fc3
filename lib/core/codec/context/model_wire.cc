// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The stored form of tables: frequencies as levels of four steps an octave, each level as its
// difference from a prediction, in Rice codes. A model takes half of the bytes of listed
// frequencies.

#include <algorithm>
#include <bit>

#include "lib/core/codec/context/model.h"

namespace kv {
namespace {

constexpr uint8_t kPacked = 0x80;      // flag in the table count: the tables are packed
constexpr uint32_t kMostLevel = 41;    // level of the weight 2048
constexpr uint32_t kFirstSpread = 24;  // eight times the mean difference that is expected first
constexpr uint32_t kMostUnary = 12, kPlainBits = 7;

// Weights of the levels: 0 for a symbol that does not occur; 1 to 5 for weights 0 to 4; above them
// four levels an octave.
struct Weights {
  uint32_t of[kMostLevel + 1];
  constexpr Weights() : of() {
    for (uint32_t level = 1; level <= kMostLevel; ++level) {
      const uint32_t step = level - 1;
      of[level] = step < 4 ? step : (4 + step % 4) << (step / 4 - 1);
    }
  }
};
constexpr Weights kWeights;

// Returns the level whose weight is nearest to weight16 / 16.
uint32_t FindLevel(uint64_t weight16) {
  if (weight16 < 64) return 1 + static_cast<uint32_t>(weight16 + 8) / 16;
  // Rounds to three significant bits, which are the four steps of the octave.
  weight16 += uint64_t{1} << (std::bit_width(weight16) - 4);
  const auto top = static_cast<uint32_t>(std::bit_width(weight16)) - 1;  // 6: weights from 4
  return 1 + 4 * (top - 5) + static_cast<uint32_t>(weight16 >> (top - 2)) - 4;
}

class BitWriter {
 public:
  static constexpr bool kReads = false;

  explicit BitWriter(size_t most_bytes) : bytes_(most_bytes + sizeof(bits_)) {}

  // Writes an exponential Golomb code: one zero for each bit beyond `order`, a one, then the bits.
  void Gamma(uint32_t order, uint32_t& value) {
    const uint32_t sum = value + (1u << order);
    const auto bits = static_cast<uint32_t>(std::bit_width(sum)) - 1;
    Put(uint64_t{1} << (bits - order) | uint64_t{sum - (1u << bits)} << (bits - order + 1),
        2 * bits - order + 1);
  }
  // Writes a Rice code: the part above `order` bits in unary. Values whose unary part would be long
  // are escaped and written plain.
  void Rice(uint32_t order, uint32_t& value) {
    const uint32_t high = value >> order;
    if (high >= kMostUnary) {
      Put(uint64_t{value} << kMostUnary, kMostUnary + kPlainBits);
    } else {
      Put(uint64_t{1} << high | uint64_t{value & ((1u << order) - 1)} << (high + 1),
          high + 1 + order);
    }
  }
  ByteSpan Finish() {
    StoreLE(bytes_.data() + size_, bits_);
    return ByteSpan(bytes_).first(size_ + (count_ + 7) / 8);
  }

 private:
  void Put(uint64_t value, uint32_t count) {
    bits_ |= value << count_;
    count_ += count;
    if (count_ < 32) return;
    StoreLE(bytes_.data() + size_, static_cast<uint32_t>(bits_));
    size_ += 4;
    bits_ >>= 32;
    count_ -= 32;
  }

  Bytes bytes_;
  size_t size_ = 0;
  uint64_t bits_ = 0;
  uint32_t count_ = 0;  // number of bits in bits_, below 32 between calls
};

// Past the end, reads zeros. Every loop still ends, because unary runs are limited (kMostUnary);
// the caller detects the overrun with Used().
class BitReader {
 public:
  static constexpr bool kReads = true;
  explicit BitReader(ByteSpan bytes) : bytes_(bytes) {}

  void Gamma(uint32_t order, uint32_t& value) {
    const uint64_t next = Peek();
    const uint32_t zeros = Zeros(next), bits = zeros + order;
    if (zeros == kMostUnary) throw Bad();
    value = (Low(next >> (zeros + 1), bits) | 1u << bits) - (1u << order);
    at_ += zeros + 1 + bits;
  }
  void Rice(uint32_t order, uint32_t& value) {
    const uint64_t next = Peek();
    const uint32_t high = Zeros(next);
    if (high == kMostUnary) {
      value = Low(next >> kMostUnary, kPlainBits);
      at_ += kMostUnary + kPlainBits;
    } else {
      value = high << order | Low(next >> (high + 1), order);
      at_ += high + 1 + order;
    }
  }
  uint64_t Used() const { return (at_ + 7) / 8; }
  static Error Bad() {
    return Error(Finding::kBadFrame, "a table has a level that does not exist");
  }

 private:
  // Returns the next bits, at least 57, which is more than any code has.
  uint64_t Peek() const {
    const uint64_t byte = at_ / 8;
    if (byte + 8 <= bytes_.size()) return LoadLE<uint64_t>(bytes_.data() + byte) >> at_ % 8;
    std::byte eight[8] = {};
    if (byte < bytes_.size()) std::copy_n(bytes_.data() + byte, bytes_.size() - byte, eight);
    return LoadLE<uint64_t>(eight) >> at_ % 8;
  }
  static uint32_t Zeros(uint64_t bits) {
    return static_cast<uint32_t>(std::countr_zero(bits | uint64_t{1} << kMostUnary));
  }
  static uint32_t Low(uint64_t bits, uint32_t count) {
    return static_cast<uint32_t>(bits) & ((1u << count) - 1);
  }

  ByteSpan bytes_;
  uint64_t at_ = 0;  // bits
};

// Predicts a level: the mean of the two neighbours, averaged with the plane through all three
// neighbours, which is limited to the range of the two.
uint32_t Predicted(uint32_t left, uint32_t above, uint32_t corner) {
  const auto [low, high] = std::minmax(left, above);
  const auto plane = std::clamp(static_cast<int32_t>(left + above - corner),
                                static_cast<int32_t>(low), static_cast<int32_t>(high));
  return (static_cast<uint32_t>(plane) + (left + above + 1) / 2) / 2;
}

// Writes or reads the levels of a table, so that both directions share one grammar. `above` is the
// preceding table, or nullptr. `spread` follows the mean difference and sets the Rice order.
template <class Bits>
void CodeLevels(Bits& bits, const uint8_t* above, uint32_t symbols, uint32_t& spread,
                uint8_t* levels) {
  for (uint32_t i = 0; i < symbols; ++i) {
    const uint32_t left = i > 0 ? levels[i - 1] : 0;
    if (left == 0) {
      uint32_t run = 0;
      if (!Bits::kReads) {
        while (i + run < symbols && levels[i + run] == 0) ++run;
      }
      bits.Gamma(1, run);
      if (run > symbols - i) throw BitReader::Bad();
      i += run;
      if (i == symbols) return;
      uint32_t step = levels[i] - 1u;
      bits.Gamma(1, step);
      if (step >= kMostLevel) throw BitReader::Bad();
      levels[i] = static_cast<uint8_t>(step + 1);
      continue;
    }
    const uint32_t predicted = above == nullptr ? left : Predicted(left, above[i], above[i - 1]);
    const int32_t difference = levels[i] - static_cast<int32_t>(predicted);
    // Folds signs: 0, 1, -1, 2, -2 become 0, 1, 2, 3, 4.
    uint32_t folded = static_cast<uint32_t>(difference > 0 ? 2 * difference - 1 : -2 * difference);
    bits.Rice(static_cast<uint32_t>(std::bit_width(spread >> 4)), folded);
    spread += folded - (spread >> 3);
    const uint32_t level = folded % 2 == 1 ? predicted + folded / 2 + 1 : predicted - folded / 2;
    if (level > kMostLevel) throw BitReader::Bad();
    levels[i] = static_cast<uint8_t>(level);
  }
}

// Lists the table of each context in order, as runs of up to 16: `table << 4 | length - 1`.
std::vector<uint8_t> MapRuns(const ArenaVector<uint8_t>& table_of,
                             const std::vector<uint16_t>& order) {
  std::vector<uint8_t> runs;
  for (size_t i = 0; i < order.size();) {
    const uint8_t table = table_of[order[i]];
    size_t length = 1;
    while (length < 16 && i + length < order.size() && table_of[order[i + length]] == table)
      ++length;
    runs.push_back(static_cast<uint8_t>(table << 4 | (length - 1)));
    i += length;
  }
  return runs;
}

void ReadMap(ByteReader& reader, uint32_t tables, const std::vector<uint16_t>& order,
             ArenaVector<uint8_t>& table_of) {
  const uint64_t at = reader.offset();
  table_of.resize(order.size());
  const uint32_t runs = reader.U16("number of runs");
  size_t context = 0;
  for (const std::byte run : reader.Take(runs, "context map")) {
    const uint32_t table = static_cast<uint32_t>(run) >> 4,
                   length = (static_cast<uint32_t>(run) & 15) + 1;
    if (table >= tables || context + length > order.size()) {
      throw Error(Finding::kBadFrame,
                  "the context map names a table or a context that does not exist")
          .At(at);
    }
    for (uint32_t i = 0; i < length; ++i) table_of[order[context++]] = static_cast<uint8_t>(table);
  }
  if (context != order.size()) {
    throw Error(Finding::kBadFrame, "the context map covers {} of {} contexts", context,
                order.size())
        .At(at);
  }
}

void ReadPackedTables(ByteReader& reader, uint32_t count, ContextModel& model) {
  const uint64_t at = reader.offset();
  const std::vector<uint16_t>& order = SignedOrder(model.symbol_bits);
  const auto symbols = static_cast<uint32_t>(order.size());
  BitReader bits(reader.rest());
  std::array<uint8_t, 256> levels[2] = {};
  uint32_t spread = kFirstSpread;
  for (uint32_t t = 0; t < count; ++t) {
    std::array<uint8_t, 256>& here = levels[t % 2];
    here.fill(0);
    CodeLevels(bits, t > 0 ? levels[1 - t % 2].data() : nullptr, symbols, spread, here.data());
    LeveledTable table;
    for (uint32_t i = 0; i < symbols; ++i) table.levels[order[i]] = here[i];
    if (!table.SetFrequencies(symbols))
      throw Error(Finding::kBadFrame, "table {} has no symbols", t).At(at);
    model.tables.push_back(table.frequencies);
  }
  reader.Skip(bits.Used(), "tables");
}

void ReadListedTables(ByteReader& reader, uint32_t count, ContextModel& model) {
  const uint32_t symbols = 1u << model.symbol_bits;
  for (uint32_t t = 0; t < count; ++t) {
    const uint64_t at = reader.offset();
    std::array<uint16_t, 256> table{};
    const ByteSpan mask = reader.Take(symbols / 8, "presence mask");
    uint32_t sum = 0;
    for (uint32_t s = 0; s < symbols; ++s) {
      if ((static_cast<uint32_t>(mask[s / 8]) >> (s % 8) & 1) == 0) continue;
      uint32_t f = reader.U8("frequency");
      if (f >= 128) f = (f & 0x7f) << 8 | reader.U8("frequency");
      table[s] = static_cast<uint16_t>(f);
      sum += f;
      if (f == 0) sum += kRansTotal + 1;  // refuses a symbol that is present, but has no frequency
    }
    if (sum != kRansTotal) {
      throw Error(Finding::kBadFrame, "table {}: frequencies do not sum to {}", t, kRansTotal)
          .At(at);
    }
    model.tables.push_back(table);
  }
}

}  // namespace

bool LeveledTable::SetFrequencies(uint32_t symbols) {
  uint32_t present = 0, weights = 0, sum = 0;
  uint8_t most = 0;
  for (uint32_t s = 0; s < symbols; ++s) most = std::max(most, levels[s]);
  for (uint32_t s = 0; s < symbols; ++s) {
    present += levels[s] > 0 ? 1 : 0;
    weights += kWeights.of[levels[s]];
  }
  if (present == 0) return false;
  // Each present symbol has 1 and shares the rest by weight. Products are below 2^22 and sums below
  // 2^19, so that a reciprocal of 41 bits divides exactly: the division by a variable would
  // otherwise dominate.
  const uint32_t shared = kRansTotal - present;
  const uint64_t reciprocal = ((uint64_t{1} << 41) - 1) / std::max(1u, weights) + 1;
  // Divides once per level, because there are fewer levels than symbols.
  uint16_t of_level[kMostLevel + 1];
  for (uint32_t level = 0; level <= most; ++level) {
    const uint64_t product = uint64_t{kWeights.of[level]} * shared;
    of_level[level] = static_cast<uint16_t>((product * reciprocal >> 41) + (level > 0 ? 1 : 0));
  }
  for (uint32_t s = 0; s < symbols; ++s) {
    frequencies[s] = of_level[levels[s]];
    sum += frequencies[s];
  }
  // The most frequent symbol takes the rounding error, which costs it the least.
  const auto largest =
      static_cast<size_t>(std::find(levels.begin(), levels.end(), most) - levels.begin());
  frequencies[largest] = static_cast<uint16_t>(frequencies[largest] + kRansTotal - sum);
  return true;
}

LeveledTable MakeTable(const uint32_t* counts, uint32_t symbols) {
  LeveledTable table;
  uint64_t total = 0;
  for (uint32_t s = 0; s < symbols; ++s) total += counts[s];
  if (total == 0) table.levels[0] = 1;  // no symbol uses an empty table, but it must be valid
  const uint64_t scale = (uint64_t{16 * kRansTotal} << 32) / std::max<uint64_t>(1, total);
  for (uint32_t s = 0; s < symbols; ++s) {
    if (counts[s] == 0) continue;
    // One of 2048 is given to each present symbol anyway, so that 16 sixteenths are subtracted.
    const uint64_t weight16 = counts[s] * scale >> 32;
    table.levels[s] = static_cast<uint8_t>(FindLevel(weight16 - std::min<uint64_t>(16, weight16)));
  }
  table.SetFrequencies(symbols);
  return table;
}

void WriteModel(const ContextModel& model, const std::vector<uint16_t>& order, ByteWriter& out) {
  KV_ASSERT(model.levels.size() == model.tables.size());
  out.U8(static_cast<uint8_t>(kPacked | model.tables.size()));
  const std::vector<uint8_t> runs = MapRuns(model.table_of, order);
  out.U16(static_cast<uint16_t>(runs.size()));
  out.Append(std::as_bytes(std::span(runs)));
  const std::vector<uint16_t>& symbol_order = SignedOrder(model.symbol_bits);
  const auto symbols = static_cast<uint32_t>(symbol_order.size());
  BitWriter bits(model.levels.size() * symbols * (kMostUnary + kPlainBits) / 8 + 1);
  std::array<uint8_t, 256> levels[2];
  uint32_t spread = kFirstSpread;
  for (size_t t = 0; t < model.levels.size(); ++t) {
    uint8_t* here = levels[t % 2].data();
    for (uint32_t i = 0; i < symbols; ++i) here[i] = model.levels[t][symbol_order[i]];
    CodeLevels(bits, t > 0 ? levels[1 - t % 2].data() : nullptr, symbols, spread, here);
  }
  out.Append(bits.Finish());
}

ContextModel ReadModel(ByteReader& reader, uint32_t symbol_bits, const std::vector<uint16_t>& order,
                       Arena* arena) {
  ContextModel model(symbol_bits, arena);
  const uint64_t at = reader.offset();
  const uint32_t head = reader.U8("table count"), count = head & ~uint32_t{kPacked};
  if (count == 0 || count > kMaxRansTables) {
    throw Error(Finding::kBadFrame, "{} tables, expected 1 to {}", count, kMaxRansTables).At(at);
  }
  ReadMap(reader, count, order, model.table_of);
  model.tables.reserve(count);
  if ((head & kPacked) != 0) {
    ReadPackedTables(reader, count, model);
  } else {
    ReadListedTables(reader, count, model);
  }
  return model;
}

}  // namespace kv
