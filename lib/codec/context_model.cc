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

// Clusters of contexts under merging. Only symbols that occur anywhere are counted, and sums that
// do not change are kept: merging is what planning a short frame costs.
class Merger {
 public:
  Merger(const ContextCounts& counts, uint32_t scale)
      : mask_bits_(1u << counts.symbol_bits), scale_(scale) {
    const uint32_t symbols = 1u << counts.symbol_bits;
    for (uint32_t s = 0; s < symbols; ++s) {
      uint32_t any = 0;
      for (uint32_t context = 0; context < counts.contexts; ++context) any |= counts.Of(context)[s];
      if (any != 0) present_.push_back(s);
    }
  }

  // False for contexts without counts.
  bool Add(const uint32_t* row) {
    Cluster cluster;
    for (const uint32_t s : present_) {
      cluster.counts.push_back(row[s]);
      cluster.total += row[s];
    }
    if (cluster.total == 0) return false;
    cluster.cost = Cost(cluster.counts.data(), cluster.counts.data(), 0, cluster.total);
    clusters_.push_back(std::move(cluster));
    return true;
  }
  void Join(uint32_t context) { clusters_.back().contexts.push_back(context); }
  bool empty() const { return clusters_.empty(); }
  size_t size() const { return clusters_.size(); }
  const std::vector<uint32_t>& contexts(size_t i) const { return clusters_[i].contexts; }

  // Merges neighbours, cheapest first, until no merge saves bytes and at most `most` are left.
  void MergeNeighbours(size_t most) {
    std::vector<int64_t> delta;  // of clusters i and i + 1
    for (size_t i = 0; i + 1 < size(); ++i) delta.push_back(Delta(i, i + 1));
    while (!delta.empty()) {
      const auto best =
          static_cast<size_t>(std::min_element(delta.begin(), delta.end()) - delta.begin());
      if (delta[best] >= 0 && size() <= most) return;
      Absorb(best, best + 1);
      clusters_.erase(clusters_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      delta.erase(delta.begin() + static_cast<std::ptrdiff_t>(best));
      if (best > 0) delta[best - 1] = Delta(best - 1, best);
      if (best < delta.size()) delta[best] = Delta(best, best + 1);
    }
  }

  void MergeAnyPairs(size_t most) {
    const size_t n = size();
    std::vector<int64_t> delta(n * n);
    std::vector<bool> gone(n);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = i + 1; j < n; ++j) delta[i * n + j] = Delta(i, j);
    }
    for (size_t left = n; left > 1; --left) {
      size_t a = 0, b = 0;
      for (size_t i = 0; i < n; ++i) {
        if (gone[i]) continue;
        for (size_t j = i + 1; j < n; ++j) {
          if (!gone[j] && (b == 0 || delta[i * n + j] < delta[a * n + b])) a = i, b = j;
        }
      }
      if (delta[a * n + b] >= 0 && left <= most) break;
      Absorb(a, b);
      gone[b] = true;
      for (size_t i = 0; i < n; ++i) {
        if (i != a && !gone[i]) delta[std::min(i, a) * n + std::max(i, a)] = Delta(i, a);
      }
    }
    std::vector<Cluster> kept;
    for (size_t i = 0; i < n; ++i) {
      if (!gone[i]) kept.push_back(std::move(clusters_[i]));
    }
    clusters_ = std::move(kept);
  }

 private:
  struct Cluster {
    std::vector<uint32_t> contexts, counts;
    uint64_t total = 0, cost = 0;
  };

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
  int64_t Delta(size_t i, size_t j) const {
    const Cluster &a = clusters_[i], &b = clusters_[j];
    return static_cast<int64_t>(Cost(a.counts.data(), b.counts.data(), 1, a.total + b.total)) -
           static_cast<int64_t>(a.cost + b.cost);
  }
  void Absorb(size_t i, size_t j) {
    Cluster &into = clusters_[i], &from = clusters_[j];
    for (size_t s = 0; s < present_.size(); ++s) into.counts[s] += from.counts[s];
    into.contexts.insert(into.contexts.end(), from.contexts.begin(), from.contexts.end());
    into.total += from.total;
    into.cost = Cost(into.counts.data(), into.counts.data(), 0, into.total);
  }

  uint64_t mask_bits_, scale_;
  std::vector<uint32_t> present_;  // symbols
  std::vector<Cluster> clusters_;
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
  Merger merger(counts, scale);
  std::vector<uint32_t> unseen;  // before the first cluster
  for (const uint16_t context : order) {
    // A context without counts goes with the cluster before it: the map stays in few runs.
    if (!merger.Add(counts.Of(context)) && merger.empty()) {
      unseen.push_back(context);
      continue;
    }
    merger.Join(context);
    for (const uint32_t other : unseen) merger.Join(other);
    unseen.clear();
  }
  ContextGroups groups{std::vector<uint8_t>(counts.contexts), 1};
  if (merger.empty()) return groups;
  merger.MergeNeighbours(20);
  merger.MergeAnyPairs(kMaxRansTables);
  groups.groups = static_cast<uint32_t>(merger.size());
  for (size_t g = 0; g < merger.size(); ++g) {
    for (const uint32_t context : merger.contexts(g))
      groups.group_of[context] = static_cast<uint8_t>(g);
  }
  return groups;
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
  const uint32_t cut = counts.symbol_bits - bits;
  ContextCounts coarse(counts.contexts, bits);
  for (size_t i = 0; i < coarse.counts.size(); ++i) {
    for (size_t fine = i << cut; fine < (i + 1) << cut; ++fine)
      coarse.counts[i] += counts.counts[fine];
  }
  return coarse;
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
