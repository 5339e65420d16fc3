// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/rans.h"

// Static tables for symbols in context, found by merging contexts as long as that saves bytes.
namespace kv {

// At most 16 tables over 2^symbol_bits symbols and a map from contexts to tables.
struct ContextModel {
  uint32_t symbol_bits = 6;
  std::vector<uint8_t> table_of;                  // per context
  std::vector<std::array<uint16_t, 256>> tables;  // frequencies, each table sums to 2048
  std::vector<std::array<uint8_t, 256>> levels;   // of frequencies, to be stored
};

// A table as it is stored: frequencies follow from levels, four of them an octave.
struct LeveledTable {
  std::array<uint8_t, 256> levels{};  // 0: the symbol does not occur
  std::array<uint16_t, 256> frequencies{};

  // False if there are no symbols.
  bool SetFrequencies(uint32_t symbols);
};
// For every symbol that occurs a frequency of at least 1.
LeveledTable MakeTable(const uint32_t* counts, uint32_t symbols);

// Counts of symbols per context.
struct ContextCounts {
  uint32_t contexts = 0;
  uint32_t symbol_bits = 6;
  std::vector<uint32_t> counts;  // [context << symbol_bits | symbol]

  ContextCounts(uint32_t context_count, uint32_t bits)
      : contexts(context_count), symbol_bits(bits), counts(size_t{context_count} << bits) {}
  uint32_t* Of(uint32_t context) { return counts.data() + (size_t{context} << symbol_bits); }
  const uint32_t* Of(uint32_t context) const {
    return counts.data() + (size_t{context} << symbol_bits);
  }
};

// Which contexts share a table. `order` lists the contexts so that neighbours are alike: only they
// are merged, unless any pairs are asked for, which pays where contexts lie in a plane. `scale` is
// how many symbols each count stands for (sampling). Contexts hardly seen go with a neighbour.
struct ContextGroups {
  std::vector<uint8_t> group_of;  // per context
  uint32_t groups = 1;
};
ContextGroups MergeContexts(const ContextCounts& counts, const std::vector<uint16_t>& order,
                            uint32_t scale, bool any_pairs);

// The contexts of symbols of 6 to 8 bits with a sign bit on top, from most negative over -0 and +0
// to most positive.
const std::vector<uint16_t>& SignedOrder(uint32_t symbol_bits);

// One table per group from exact counts per group.
ContextModel MakeModel(const ContextGroups& groups, const ContextCounts& per_group);

// Bits that coding the counts with these frequencies takes, without the tables. Exact to 2^-16 bit.
uint64_t CodedBits16(const uint32_t* counts, const std::array<uint16_t, 256>& frequencies,
                     uint32_t symbols);

// Bits that storing a table takes, more or less.
constexpr uint64_t TableBits(uint64_t present) { return 48 + 5 * present; }

// Entropy of the counts in bits, without tables. Exact to 2^-16 bit for each symbol.
uint64_t EntropyBits16(const uint32_t* counts, uint32_t symbols);

// The same counts of symbols cut to fewer bits.
ContextCounts Coarser(const ContextCounts& counts, uint32_t bits);
// What one table per group and its symbols come to, before frequencies are rounded; each count
// stands for `scale` symbols.
uint64_t CostBytes(const ContextCounts& per_group, uint64_t scale);

// Wire form: FORMAT.md in this folder, "Model". `order` is that of the contexts.
void WriteModel(const ContextModel& model, const std::vector<uint16_t>& order, ByteWriter& out);
// Throws kBadFrame for anything that is not a model: no table, counts that do not sum to 2048, a
// map that does not cover the contexts. Levels stay empty.
ContextModel ReadModel(ByteReader& reader, uint32_t symbol_bits,
                       const std::vector<uint16_t>& order);

// 2048 slots per table.
void MakeSlots(const ContextModel& model, std::vector<RansSlot>& slots);
// 256 entries per table.
void MakeEncoderSymbols(const ContextModel& model, std::vector<RansEncoderSymbol>& symbols);

}  // namespace kv
