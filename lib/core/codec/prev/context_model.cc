// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/prev/context_model.h"

#include <algorithm>

#include "lib/core/codec/integer_log.h"

namespace kv {

const std::vector<uint16_t>& SignedOrder(uint32_t symbol_bits) {
  static const auto orders = [] {
    std::array<std::vector<uint16_t>, 3> made;
    for (uint32_t bits = 6; bits <= 8; ++bits) {
      const auto half = static_cast<uint16_t>(1u << (bits - 1));
      std::vector<uint16_t>& order = made[bits - 6];
      for (auto symbol = static_cast<uint16_t>(2 * half); symbol > half;) order.push_back(--symbol);
      for (uint16_t magnitude = 0; magnitude < half; ++magnitude) order.push_back(magnitude);
    }
    return made;
  }();
  KV_ASSERT(symbol_bits >= 6 && symbol_bits <= 8);
  return orders[symbol_bits - 6];
}

uint64_t EntropyBits16(const uint32_t* counts, uint32_t symbols) {
  uint64_t total = 0, inside = 0;
  for (uint32_t s = 0; s < symbols; ++s) {
    total += counts[s];
    inside += NLog2Of(counts[s]);
  }
  return total == 0 ? 0 : NLog2Of(total) - inside;
}

ContextModel MakeModel(const ContextGroups& groups, const ContextCounts& per_group) {
  ContextModel model(per_group.symbol_bits, per_group.arena());
  model.table_of = groups.group_of;
  model.tables.reserve(groups.groups);
  model.levels.reserve(groups.groups);
  for (uint32_t g = 0; g < groups.groups; ++g) {
    const LeveledTable table = MakeTable(per_group.Of(g), 1u << per_group.symbol_bits);
    model.tables.push_back(table.frequencies);
    model.levels.push_back(table.levels);
  }
  return model;
}

ContextCounts Coarser(const ContextCounts& counts, uint32_t bits) {
  if (bits == counts.symbol_bits) return counts;
  ContextCounts coarse(counts.contexts, bits, counts.arena());
  const uint32_t* from = counts.counts.data();
  switch (counts.symbol_bits - bits) {
    case 1:
      for (uint32_t& n : coarse.counts) n = from[0] + from[1], from += 2;
      return coarse;
    default:
      for (uint32_t& n : coarse.counts) n = (from[0] + from[1]) + (from[2] + from[3]), from += 4;
      return coarse;
  }
}

uint64_t CostBytes(const ContextCounts& per_group, uint64_t scale) {
  const uint32_t symbols = 1u << per_group.symbol_bits;
  uint64_t bits16 = 0, table_bits = 0;
  for (uint32_t g = 0; g < per_group.contexts; ++g) {
    const uint32_t* counts = per_group.Of(g);
    bits16 += EntropyBits16(counts, symbols);
    const auto absent = static_cast<uint64_t>(std::count(counts, counts + symbols, 0u));
    table_bits += TableBits(symbols - absent);
  }
  return (table_bits + bits16 / 65536 * scale) / 8;
}

uint64_t CodedBits16(const uint32_t* counts, const std::array<uint16_t, 256>& frequencies,
                     uint32_t symbols) {
  uint64_t bits = 0;
  for (uint32_t s = 0; s < symbols; ++s) {
    if (counts[s] != 0)
      bits += counts[s] * ((uint64_t{kRansTotalBits} << 16) - Log2Of(frequencies[s]));
  }
  return bits;
}

void MakeSlots(const ContextModel& model, std::vector<RansSlot>& slots) {
  // Most symbols have few slots: whole blocks are quicker than counted ones, and what is written
  // too far belongs to the next symbol, or to the room behind the last.
  constexpr uint32_t kBlock = 16;
  slots.resize(model.tables.size() * kRansTotal + kBlock);
  RansSlot* out = slots.data();
  const uint32_t symbols = 1u << model.symbol_bits;
  for (const auto& table : model.tables) {
    for (uint32_t s = 0; s < symbols; ++s) {
      const uint32_t frequency = table[s];
      for (uint32_t begin = 0; begin < frequency; begin += kBlock) {
        const RansSlot first = MakeRansSlot(s, frequency, begin);
        for (uint32_t i = 0; i < kBlock; ++i) out[begin + i] = first + i;
      }
      out += frequency;
    }
  }
}

void MakeEncoderSymbols(const ContextModel& model, std::vector<RansEncoderSymbol>& symbols) {
  const uint32_t symbol_count = 1u << model.symbol_bits;
  symbols.resize(model.tables.size() * 256);
  for (size_t t = 0; t < model.tables.size(); ++t) {
    uint32_t start = 0;
    for (uint32_t s = 0; s < symbol_count; ++s) {
      const uint32_t f = model.tables[t][s];
      if (f != 0) symbols[t * 256 + s] = MakeRansEncoderSymbol(start, f);
      start += f;
    }
  }
}

}  // namespace kv
