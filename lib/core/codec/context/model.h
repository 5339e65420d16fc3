// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by model.cc, model_wire.cc

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "lib/core/base/arena.h"
#include "lib/core/base/bytes.h"
#include "lib/core/kernels/rans.h"

// Static frequency tables for symbols in context. The encoder starts with one table per context and
// merges tables as long as that saves bytes: contexts that are alike share one. model_wire.cc
// implements the stored form, model.cc everything else.
namespace kv {

// At most 16 tables over 2^symbol_bits symbols, and a map from contexts to tables.
struct ContextModel {
  uint32_t symbol_bits = 6;
  ArenaVector<uint8_t> table_of;                  // per context
  ArenaVector<std::array<uint16_t, 256>> tables;  // frequencies; each table sums to 2048
  ArenaVector<std::array<uint8_t, 256>> levels;   // the stored form of the frequencies

  explicit ContextModel(uint32_t bits = 6, Arena* arena = nullptr)
      : symbol_bits(bits), table_of(arena), tables(arena), levels(arena) {}
};

// A table in its stored form. Frequencies follow from levels, of which there are four per octave.
struct LeveledTable {
  std::array<uint8_t, 256> levels{};  // 0: the symbol does not occur
  std::array<uint16_t, 256> frequencies{};

  // Returns false if no symbol occurs.
  bool SetFrequencies(uint32_t symbols);
};
// Makes a table in which every symbol that occurs has a frequency of at least 1.
LeveledTable MakeTable(const uint32_t* counts, uint32_t symbols);

// Counts of symbols per context.
struct ContextCounts {
  uint32_t contexts = 0;
  uint32_t symbol_bits = 6;
  ArenaVector<uint32_t> counts;  // [context << symbol_bits | symbol]

  // Anything computed from the counts takes its memory from the same arena.
  ContextCounts(uint32_t context_count, uint32_t bits, Arena* arena = nullptr)
      : contexts(context_count), symbol_bits(bits), counts(size_t{context_count} << bits, arena) {}
  Arena* arena() const { return counts.get_allocator().arena(); }
  uint32_t* Of(uint32_t context) { return counts.data() + (size_t{context} << symbol_bits); }
  const uint32_t* Of(uint32_t context) const {
    return counts.data() + (size_t{context} << symbol_bits);
  }
};

// Decides which contexts share a table. `order` lists the contexts so that neighbours are alike.
// Only neighbours are merged, unless `any_pairs` is set, which pays if contexts have two
// dimensions. Each count stands for `scale` symbols of a sample. A context that occurs rarely, or
// fewer than `least` times, joins a neighbour.
struct ContextGroups {
  ArenaVector<uint8_t> group_of;  // per context
  uint32_t groups = 1;
};
ContextGroups MergeContexts(const ContextCounts& counts, const std::vector<uint16_t>& order,
                            uint32_t scale, bool any_pairs, uint64_t least = 0);

// Lists the contexts of symbols of 6 to 8 bits whose top bit is the sign, in the order of their
// values: from the most negative through -0 and +0 to the most positive.
const std::vector<uint16_t>& SignedOrder(uint32_t symbol_bits);

// Makes one table per group. The counts must be exact: a symbol without a frequency cannot be
// coded.
ContextModel MakeModel(const ContextGroups& groups, const ContextCounts& per_group);

// Returns the bits, times 2^16, that symbols of these counts take with these frequencies, without
// the tables.
uint64_t CodedBits16(const uint32_t* counts, const std::array<uint16_t, 256>& frequencies,
                     uint32_t symbols);

// Estimates the bits that a stored table of `present` symbols takes.
constexpr uint64_t TableBits(uint64_t present) { return 48 + 5 * present; }

// Returns the entropy of all counted symbols in bits, times 2^16, without tables.
uint64_t EntropyBits16(const uint32_t* counts, uint32_t symbols);

// Returns the counts of the same symbols truncated to fewer bits.
ContextCounts Coarser(const ContextCounts& counts, uint32_t bits);
// Estimates the bytes of one table per group and of its symbols, before frequencies are rounded.
// Each count stands for `scale` symbols.
uint64_t CostBytes(const ContextCounts& per_group, uint64_t scale);

// Writes the model as specified in FORMAT.md in this folder, "Model". `order` is that of the
// contexts.
void WriteModel(const ContextModel& model, const std::vector<uint16_t>& order, ByteWriter& out);
// Throws kBadFrame for a malformed model: without a table, with frequencies that do not sum to
// 2048, or with a map that does not cover the contexts. Leaves `levels` empty.
ContextModel ReadModel(ByteReader& reader, uint32_t symbol_bits, const std::vector<uint16_t>& order,
                       Arena* arena = nullptr);

// Makes 2048 slots per table, and room behind the last for MakeSlots' block writes.
void MakeSlots(const ContextModel& model, std::vector<RansSlot>& slots);
// Makes 256 entries per table.
void MakeEncoderSymbols(const ContextModel& model, std::vector<RansEncoderSymbol>& symbols);

// log2 with 16 fractional bits. Costs are integers, so that the encoder's choices, and therefore
// its bytes, do not depend on how a compiler orders float operations.

constexpr uint32_t kLogBits = 12;
struct LogTable {
  std::array<uint32_t, 1u << kLogBits> log, times;  // log2(n), n * log2(n)
  LogTable();
};
extern const LogTable kLogTable;

inline uint64_t FixedLog2(uint64_t n) {
  if (n < kLogTable.log.size()) return kLogTable.log[n];
  const auto shift = static_cast<uint32_t>(std::bit_width(n)) - kLogBits;
  return kLogTable.log[n >> shift] + (uint64_t{shift} << 16);
}

// Returns n * log2(n), with 16 fractional bits.
inline uint64_t FixedNLog2(uint64_t n) {
  return n < kLogTable.times.size() ? kLogTable.times[n] : n * FixedLog2(n);
}

}  // namespace kv
