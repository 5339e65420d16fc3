// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/codec/context_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace kv {
namespace {

// log2 in 16 fractional bits. Costs are integers, so that choices, and with them the bytes written,
// do not depend on how a compiler orders float operations.
constexpr uint32_t kLogBits = 12;
struct LogTable {
  std::array<uint32_t, 1u << kLogBits> log, times;  // log2(n), n * log2(n)
  LogTable() {
    log[0] = times[0] = 0;
    for (uint32_t i = 1; i < log.size(); ++i) {
      log[i] = static_cast<uint32_t>(std::lround(std::log2(i) * 65536));
      times[i] = i * log[i];
    }
  }
};
const LogTable kLog;

uint64_t Log2Of(uint64_t n) {
  if (n < kLog.log.size()) return kLog.log[n];
  const auto shift = static_cast<uint32_t>(std::bit_width(n)) - kLogBits;
  return kLog.log[n >> shift] + (uint64_t{shift} << 16);
}

// n * log2(n).
uint64_t Weight(uint64_t n) { return n < kLog.times.size() ? kLog.times[n] : n * Log2Of(n); }

// Clusters of contexts under merging, one row of counts each. Only symbols that occur anywhere are
// counted, and sums that do not change are kept: merging is what planning a short frame costs.
class Merger {
 public:
  // `order` as in MergeContexts. Contexts too rare for a table share one with their neighbours
  // from the start.
  Merger(const ContextCounts& counts, const std::vector<uint16_t>& order, uint32_t scale)
      : mask_bits_(1u << counts.symbol_bits), scale_(scale), cluster_of_(counts.contexts) {
    FindPresent(counts);
    rows_.resize(order.size() * present_.size());
    const uint64_t enough = std::max<uint64_t>(1, kFewCounts / scale);
    uint32_t cluster = 0;
    uint64_t total = 0;
    for (const uint16_t context : order) {
      if (total >= enough) {
        Close(cluster++, total);
        total = 0;
      }
      total += AddTo(cluster, counts.Of(context));
      cluster_of_[context] = static_cast<uint16_t>(cluster);
    }
    Close(cluster, total);
    // A last one that is too rare, or nothing at all.
    if (cluster > 0 && total < enough) Absorb(cluster - 1, cluster);
    for (uint32_t i = 0; i < clusters_.size(); ++i) {
      if (clusters_[i].into == i) alive_.push_back(i);
    }
  }

  // Merges neighbours, cheapest first, until no merge saves bytes and at most `most` are left.
  void MergeNeighbours(size_t most) {
    std::vector<int64_t> delta;  // of clusters i and i + 1
    for (size_t i = 0; i + 1 < alive_.size(); ++i) delta.push_back(Delta(alive_[i], alive_[i + 1]));
    while (!delta.empty()) {
      const auto best = std::min_element(delta.begin(), delta.end());
      if (*best >= 0 && alive_.size() <= most) return;
      const auto at = static_cast<size_t>(best - delta.begin());
      Absorb(alive_[at], alive_[at + 1]);
      alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      delta.erase(best);
      if (at > 0) delta[at - 1] = Delta(alive_[at - 1], alive_[at]);
      if (at < delta.size()) delta[at] = Delta(alive_[at], alive_[at + 1]);
    }
  }

  void MergeAnyPairs(size_t most) {
    const size_t n = alive_.size();
    std::vector<int64_t> delta(n * n);
    std::vector<size_t> left(n);  // of alive_
    std::iota(left.begin(), left.end(), size_t{0});
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = i + 1; j < n; ++j) delta[i * n + j] = Delta(alive_[i], alive_[j]);
    }
    while (left.size() > 1) {
      size_t a = left[0], b = left[1];
      for (size_t i = 0; i < left.size(); ++i) {
        for (size_t j = i + 1; j < left.size(); ++j) {
          if (delta[left[i] * n + left[j]] < delta[a * n + b]) a = left[i], b = left[j];
        }
      }
      if (delta[a * n + b] >= 0 && left.size() <= most) break;
      Absorb(alive_[a], alive_[b]);
      left.erase(std::find(left.begin(), left.end(), b));
      for (const size_t i : left) {
        if (i != a) delta[std::min(i, a) * n + std::max(i, a)] = Delta(alive_[i], alive_[a]);
      }
    }
    for (size_t& i : left) i = alive_[i];
    alive_.assign(left.begin(), left.end());
  }

  ContextGroups Groups() const {
    std::vector<uint8_t> group_of(clusters_.size());
    for (size_t g = 0; g < alive_.size(); ++g) group_of[alive_[g]] = static_cast<uint8_t>(g);
    ContextGroups groups{std::vector<uint8_t>(cluster_of_.size()),
                         static_cast<uint32_t>(alive_.size())};
    for (size_t context = 0; context < cluster_of_.size(); ++context) {
      size_t cluster = cluster_of_[context];
      while (clusters_[cluster].into != cluster) cluster = clusters_[cluster].into;
      groups.group_of[context] = group_of[cluster];
    }
    return groups;
  }

 private:
  // No table pays for fewer symbols than this.
  static constexpr uint32_t kFewCounts = 16;

  struct Cluster {
    uint32_t into = 0;  // itself until it is absorbed
    uint64_t total = 0, cost = 0;
  };

  void FindPresent(const ContextCounts& counts) {
    std::array<uint32_t, 256> any{};
    for (uint32_t context = 0; context < counts.contexts; ++context) {
      const uint32_t* row = counts.Of(context);
      for (uint32_t s = 0; s < mask_bits_; ++s) any[s] |= row[s];
    }
    for (uint32_t s = 0; s < mask_bits_; ++s) {
      if (any[s] != 0) present_.push_back(static_cast<uint8_t>(s));
    }
  }
  uint64_t AddTo(size_t cluster, const uint32_t* row) {
    uint32_t* to = Row(cluster);
    uint64_t total = 0;
    for (size_t i = 0; i < present_.size(); ++i) {
      const uint32_t n = row[present_[i]];
      to[i] += n;
      total += n;
    }
    return total;
  }
  void Close(uint32_t cluster, uint64_t total) {
    const uint32_t* row = Row(cluster);
    clusters_.push_back({cluster, total, Cost(row, row, 0, total)});
  }
  uint32_t* Row(size_t cluster) { return rows_.data() + cluster * present_.size(); }
  const uint32_t* Row(size_t cluster) const { return rows_.data() + cluster * present_.size(); }

  // What a table costs: its symbols at their entropy, the mask and the frequencies. Of the sum of
  // two rows, or (keep_b = 0) of the first alone.
  uint64_t Cost(const uint32_t* a, const uint32_t* b, uint32_t keep_b, uint64_t total) const {
    uint64_t inside = 0;
    uint32_t present = 0;
    for (size_t s = 0; s < present_.size(); ++s) {
      const uint32_t n = a[s] + b[s] * keep_b;
      present += n != 0;
      inside += Weight(n);
    }
    // About one frequency in eight is large.
    const uint64_t header_bits = mask_bits_ + 9 * uint64_t{present};
    return (Weight(total) - inside) * scale_ + (header_bits << 16);
  }
  int64_t Delta(uint32_t i, uint32_t j) const {
    const Cluster &a = clusters_[i], &b = clusters_[j];
    return static_cast<int64_t>(Cost(Row(i), Row(j), 1, a.total + b.total)) -
           static_cast<int64_t>(a.cost + b.cost);
  }
  void Absorb(uint32_t i, uint32_t j) {
    Cluster& into = clusters_[i];
    uint32_t* row = Row(i);
    const uint32_t* from = Row(j);
    for (size_t s = 0; s < present_.size(); ++s) row[s] += from[s];
    into.total += clusters_[j].total;
    into.cost = Cost(row, row, 0, into.total);
    clusters_[j].into = i;
  }

  uint32_t mask_bits_, scale_;
  std::vector<uint8_t> present_;  // symbols
  std::vector<uint32_t> rows_;    // [cluster][of present_]
  std::vector<Cluster> clusters_;
  std::vector<uint16_t> cluster_of_;  // per context
  std::vector<uint32_t> alive_;       // clusters, in order
};

}  // namespace

std::vector<uint16_t> SignedOrder(uint32_t symbol_bits) {
  const auto half = static_cast<uint16_t>(1u << (symbol_bits - 1));
  std::vector<uint16_t> order;
  for (uint16_t magnitude = half; magnitude-- > 0;)
    order.push_back(static_cast<uint16_t>(half | magnitude));
  for (uint16_t magnitude = 0; magnitude < half; ++magnitude) order.push_back(magnitude);
  return order;
}

ContextGroups MergeContexts(const ContextCounts& counts, const std::vector<uint16_t>& order,
                            uint32_t scale) {
  Merger merger(counts, order, scale);
  merger.MergeNeighbours(20);
  merger.MergeAnyPairs(kMaxRansTables);
  return merger.Groups();
}

uint64_t EntropyBits16(const uint32_t* counts, uint32_t symbols) {
  uint64_t total = 0, inside = 0;
  for (uint32_t s = 0; s < symbols; ++s) {
    total += counts[s];
    inside += Weight(counts[s]);
  }
  return total == 0 ? 0 : Weight(total) - inside;
}

std::array<uint16_t, 256> Normalise(const uint32_t* counts, uint32_t symbols) {
  std::array<uint16_t, 256> frequencies{};
  const uint64_t total = std::accumulate(counts, counts + symbols, uint64_t{0});
  if (total == 0) {
    frequencies[0] = kRansTotal;  // never used; any table will do
    return frequencies;
  }
  uint32_t sum = 0;
  std::vector<uint32_t> present;
  for (uint32_t s = 0; s < symbols; ++s) {
    if (counts[s] == 0) continue;
    present.push_back(s);
    const uint64_t exact = (uint64_t{counts[s]} * kRansTotal + total / 2) / total;
    frequencies[s] = static_cast<uint16_t>(std::max<uint64_t>(1, exact));
    sum += frequencies[s];
  }
  // Too much or too little is settled one step at a time where it costs least.
  while (sum != kRansTotal) {
    const int step = sum < kRansTotal ? 1 : -1;
    uint32_t best = symbols;
    int64_t best_gain = 0;
    for (const uint32_t s : present) {
      const uint32_t f = frequencies[s];
      if (step < 0 && f == 1) continue;
      const int64_t gain = static_cast<int64_t>(counts[s]) *
                           (static_cast<int64_t>(Log2Of(f + static_cast<uint32_t>(step))) -
                            static_cast<int64_t>(Log2Of(f)));
      if (best == symbols || gain > best_gain) {
        best = s;
        best_gain = gain;
      }
    }
    frequencies[best] = static_cast<uint16_t>(frequencies[best] + step);
    sum += static_cast<uint32_t>(step);
  }
  return frequencies;
}

ContextModel MakeModel(const ContextGroups& groups, const ContextCounts& per_group) {
  ContextModel model;
  model.symbol_bits = per_group.symbol_bits;
  model.table_of = groups.group_of;
  for (uint32_t g = 0; g < groups.groups; ++g) {
    model.tables.push_back(Normalise(per_group.Of(g), 1u << per_group.symbol_bits));
  }
  return model;
}

ContextCounts Coarser(const ContextCounts& counts, uint32_t bits) {
  ContextCounts coarse(counts.contexts, bits);
  const uint32_t* from = counts.counts.data();
  switch (counts.symbol_bits - bits) {
    case 0:
      return counts;
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
  uint64_t bits16 = 0, bytes = 0;
  for (uint32_t g = 0; g < per_group.contexts; ++g) {
    const uint32_t* counts = per_group.Of(g);
    bits16 += EntropyBits16(counts, symbols);
    uint32_t total = 0, present = 0, large = 0;
    for (uint32_t s = 0; s < symbols; ++s) total += counts[s];
    // A frequency takes one byte below 128 of 2048.
    for (uint32_t s = 0; s < symbols; ++s) {
      present += counts[s] != 0;
      large += counts[s] > total / 16;
    }
    bytes += symbols / 8 + present + large;
  }
  return bytes + bits16 / 65536 * scale / 8;
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

void WriteModel(const ContextModel& model, const std::vector<uint16_t>& order, ByteWriter& out) {
  out.U8(static_cast<uint8_t>(model.tables.size()));
  std::vector<uint8_t> runs;
  for (size_t i = 0; i < order.size();) {
    const uint8_t table = model.table_of[order[i]];
    size_t length = 1;
    while (length < 16 && i + length < order.size() && model.table_of[order[i + length]] == table)
      ++length;
    runs.push_back(static_cast<uint8_t>(table << 4 | (length - 1)));
    i += length;
  }
  out.U16(static_cast<uint16_t>(runs.size()));
  for (const uint8_t run : runs) out.U8(run);
  const uint32_t symbols = 1u << model.symbol_bits;
  for (const auto& table : model.tables) {
    for (uint32_t byte = 0; byte < symbols / 8; ++byte) {
      uint32_t mask = 0;
      for (uint32_t bit = 0; bit < 8; ++bit)
        mask |= static_cast<uint32_t>(table[8 * byte + bit] != 0) << bit;
      out.U8(static_cast<uint8_t>(mask));
    }
    for (uint32_t s = 0; s < symbols; ++s) {
      const uint32_t f = table[s];
      if (f == 0) continue;
      if (f >= 128) out.U8(static_cast<uint8_t>(0x80 | f >> 8));
      out.U8(static_cast<uint8_t>(f));
    }
  }
}

ContextModel ReadModel(ByteReader& reader, uint32_t symbol_bits,
                       const std::vector<uint16_t>& order) {
  ContextModel model;
  model.symbol_bits = symbol_bits;
  const uint64_t at = reader.offset();
  const uint32_t count = reader.U8("table count");
  if (count == 0 || count > kMaxRansTables) {
    throw Error(Finding::kBadFrame,
                fmt::format("{} tables, expected 1 to {}", count, kMaxRansTables))
        .At(at);
  }
  model.table_of.resize(order.size());
  const uint32_t runs = reader.U16("number of runs");
  size_t context = 0;
  for (const std::byte run : reader.Take(runs, "context map")) {
    const uint32_t table = static_cast<uint32_t>(run) >> 4,
                   length = (static_cast<uint32_t>(run) & 15) + 1;
    if (table >= count || context + length > order.size()) {
      throw Error(Finding::kBadFrame,
                  "the context map names a table or a context that does not exist")
          .At(at);
    }
    for (uint32_t i = 0; i < length; ++i)
      model.table_of[order[context++]] = static_cast<uint8_t>(table);
  }
  if (context != order.size()) {
    throw Error(Finding::kBadFrame,
                fmt::format("the context map covers {} of {} contexts", context, order.size()))
        .At(at);
  }
  const uint32_t symbols = 1u << symbol_bits;
  for (uint32_t t = 0; t < count; ++t) {
    std::array<uint16_t, 256> table{};
    const ByteSpan mask = reader.Take(symbols / 8, "presence mask");
    uint32_t sum = 0;
    for (uint32_t s = 0; s < symbols; ++s) {
      if ((static_cast<uint32_t>(mask[s / 8]) >> (s % 8) & 1) == 0) continue;
      uint32_t f = reader.U8("frequency");
      if (f >= 128) f = (f & 0x7f) << 8 | reader.U8("frequency");
      table[s] = static_cast<uint16_t>(f);
      sum += f;
      if (f == 0) sum += kRansTotal + 1;  // a present symbol has a frequency
    }
    if (sum != kRansTotal) {
      throw Error(Finding::kBadFrame,
                  fmt::format("table {}: frequencies do not sum to {}", t, kRansTotal))
          .At(at);
    }
    model.tables.push_back(table);
  }
  return model;
}

void MakeSlots(const ContextModel& model, std::vector<RansSlot>& slots) {
  slots.resize(model.tables.size() * kRansTotal);
  RansSlot* out = slots.data();
  for (const auto& table : model.tables) {
    for (uint32_t s = 0; s < 256; ++s) {
      for (uint32_t offset = 0; offset < table[s]; ++offset)
        *out++ = MakeRansSlot(s, table[s], offset);
    }
  }
}

void MakeEncoderSymbols(const ContextModel& model, std::vector<RansEncoderSymbol>& symbols) {
  symbols.resize(model.tables.size() * 256);
  for (size_t t = 0; t < model.tables.size(); ++t) {
    uint32_t start = 0;
    for (uint32_t s = 0; s < 256; ++s) {
      const uint32_t f = model.tables[t][s];
      if (f != 0) symbols[t * 256 + s] = MakeRansEncoderSymbol(start, f);
      start += f;
    }
  }
}

}  // namespace kv
