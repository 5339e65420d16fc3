// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Choice and use of static tables (model.h): entropies in integers, the merging of contexts, and
// the tables that rANS kernels need.

#include "lib/core/codec/context/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kv {

LogTable::LogTable() {
  log[0] = times[0] = 0;
  for (uint32_t i = 1; i < log.size(); ++i) {
    log[i] = static_cast<uint32_t>(std::lround(std::log2(i) * 65536));
    times[i] = i * log[i];
  }
}

const LogTable kLogTable;

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
    inside += FixedNLog2(counts[s]);
  }
  return total == 0 ? 0 : FixedNLog2(total) - inside;
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
      bits += counts[s] * ((uint64_t{kRansTotalBits} << 16) - FixedLog2(frequencies[s]));
  }
  return bits;
}

void MakeSlots(const ContextModel& model, std::vector<RansSlot>& slots) {
  // Most symbols have few slots: writing whole blocks of 16 is faster than counted loops. The
  // excess is overwritten by the next symbol, or lands in the room behind the last table.
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

namespace {

// Clusters of contexts during merging, one row of counts each. Merging dominates the time of
// planning a short frame, so only symbols that occur anywhere are counted, and the cost of a
// cluster is kept until it changes.
class Merger {
 public:
  // `order` lists the contexts so that neighbours are alike. Contexts too rare for a table of their
  // own join their neighbours from the start.
  Merger(const ContextCounts& counts, const std::vector<uint16_t>& order, uint32_t scale,
         uint64_t least)
      : symbols_(1u << counts.symbol_bits),
        scale_(scale),
        arena_(counts.arena()),
        cluster_of_(counts.contexts, arena_) {
    FindPresent(counts);
    clusters_.reserve(order.size());
    rows_.resize(order.size() * present_.size());
    const uint64_t enough = std::max<uint64_t>({1, kFewCounts / scale, least});
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
    // The last cluster may be too rare, or empty.
    if (cluster > 0 && total < enough) Absorb(cluster - 1, cluster, Delta(cluster - 1, cluster));
    alive_.reserve(clusters_.size());
    for (uint32_t i = 0; i < clusters_.size(); ++i) {
      if (clusters_[i].into == i) alive_.push_back(i);
    }
  }

  // Merges adjacent clusters, the cheapest pair first, until no merge saves bytes and at most
  // `most` clusters are left.
  void MergeNeighbours(size_t most) {
    ArenaVector<int64_t> delta(arena_);  // cost of merging clusters i and i + 1
    delta.reserve(alive_.size());
    for (size_t i = 0; i + 1 < alive_.size(); ++i) delta.push_back(Delta(alive_[i], alive_[i + 1]));
    while (!delta.empty()) {
      const auto best = std::min_element(delta.begin(), delta.end());
      if (*best >= 0 && alive_.size() <= most) return;
      const auto at = static_cast<size_t>(best - delta.begin());
      Absorb(alive_[at], alive_[at + 1], *best);
      alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      delta.erase(best);
      if (at > 0) delta[at - 1] = Delta(alive_[at - 1], alive_[at]);
      if (at < delta.size()) delta[at] = Delta(alive_[at], alive_[at + 1]);
    }
  }

  // Merges any two clusters in the same way. All pairs are compared again after each merge, so the
  // number of clusters must be small (kMostPaired).
  void MergeAnyPairs(size_t most) {
    const size_t n = alive_.size();
    ArenaVector<int64_t> delta(n * n, arena_);
    ArenaVector<size_t> left(n, arena_);  // indices into alive_
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
      Absorb(alive_[a], alive_[b], delta[a * n + b]);
      left.erase(std::find(left.begin(), left.end(), b));
      for (const size_t i : left) {
        if (i != a) delta[std::min(i, a) * n + std::max(i, a)] = Delta(alive_[i], alive_[a]);
      }
    }
    for (size_t& i : left) i = alive_[i];
    alive_.assign(left.begin(), left.end());
  }

  ContextGroups Groups() const {
    ArenaVector<uint8_t> group_of(clusters_.size(), arena_);
    for (size_t g = 0; g < alive_.size(); ++g) group_of[alive_[g]] = static_cast<uint8_t>(g);
    ContextGroups groups{ArenaVector<uint8_t>(cluster_of_.size(), arena_),
                         static_cast<uint32_t>(alive_.size())};
    for (size_t context = 0; context < cluster_of_.size(); ++context) {
      size_t cluster = cluster_of_[context];
      while (clusters_[cluster].into != cluster) cluster = clusters_[cluster].into;
      groups.group_of[context] = group_of[cluster];
    }
    return groups;
  }

 private:
  // A context with fewer symbols than this cannot pay for a table.
  static constexpr uint32_t kFewCounts = 16;

  struct Cluster {
    uint32_t into = 0;  // the cluster that absorbed this one, at first itself
    uint64_t total = 0, cost = 0;
  };

  void FindPresent(const ContextCounts& counts) {
    std::array<uint32_t, 256> any{};
    for (uint32_t context = 0; context < counts.contexts; ++context) {
      const uint32_t* row = counts.Of(context);
      for (uint32_t s = 0; s < symbols_; ++s) any[s] |= row[s];
    }
    present_.reserve(symbols_);
    for (uint32_t s = 0; s < symbols_; ++s) {
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

  // Returns the cost of a table in 2^-16 bits: its symbols at their entropy, and the stored table.
  // The counts are the sum of two rows or, if keep_b is 0, the first row alone.
  uint64_t Cost(const uint32_t* a, const uint32_t* b, uint32_t keep_b, uint64_t total) const {
    uint64_t inside = 0;
    uint32_t present = 0;
    for (size_t s = 0; s < present_.size(); ++s) {
      const uint32_t n = a[s] + b[s] * keep_b;
      present += n != 0;
      inside += FixedNLog2(n);
    }
    return (FixedNLog2(total) - inside) * scale_ + (TableBits(present) << 16);
  }
  // Returns the change in cost, negative if merging saves bits.
  int64_t Delta(uint32_t i, uint32_t j) const {
    const Cluster &a = clusters_[i], &b = clusters_[j];
    return static_cast<int64_t>(Cost(Row(i), Row(j), 1, a.total + b.total)) -
           static_cast<int64_t>(a.cost + b.cost);
  }
  // Merges cluster j into i; `delta` is what Delta returned for them.
  void Absorb(uint32_t i, uint32_t j, int64_t delta) {
    Cluster& into = clusters_[i];
    uint32_t* row = Row(i);
    const uint32_t* from = Row(j);
    for (size_t s = 0; s < present_.size(); ++s) row[s] += from[s];
    into.total += clusters_[j].total;
    into.cost += clusters_[j].cost + static_cast<uint64_t>(delta);
    clusters_[j].into = i;
  }

  uint32_t symbols_, scale_;
  Arena* arena_;
  ArenaVector<uint8_t> present_{arena_};  // symbols that occur
  ArenaVector<uint32_t> rows_{arena_};    // [cluster][index into present_]
  ArenaVector<Cluster> clusters_{arena_};
  ArenaVector<uint16_t> cluster_of_;     // per context
  ArenaVector<uint32_t> alive_{arena_};  // remaining clusters, in order
};

}  // namespace

ContextGroups MergeContexts(const ContextCounts& counts, const std::vector<uint16_t>& order,
                            uint32_t scale, bool any_pairs, uint64_t least) {
  // Two-dimensional contexts have no order in which only neighbours are alike; all pairs are tried
  // once there are few clusters.
  constexpr size_t kMostPaired = 32;
  Merger merger(counts, order, scale, least);
  merger.MergeNeighbours(any_pairs ? kMostPaired : kMaxRansTables);
  if (any_pairs) merger.MergeAnyPairs(kMaxRansTables);
  return merger.Groups();
}

}  // namespace kv
