// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/quantisation/stored_layer.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/checked.h"
#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/quantisation/tile.h"

namespace kv::quantisation {
namespace {

constexpr uint32_t kBlockValues = 32;

// Tokens of the side that its last query sees in full.
uint64_t FullTokens(const StoreRequest& request, quant::Tail tail, uint64_t tokens) {
  uint64_t full = 0;
  for (uint64_t t = 0; t < tokens; ++t) full += SeesInFull(request, tail, tokens - 1, t);
  return full;
}

StoredSide Store(const quant::CacheType& type, const quant::Side& side,
                 const StoreRequest& request) {
  StoredSide stored;
  stored.difference.resize(side.values.size());
  quant::StoreOptions options{request.rounding, request.rotate, nullptr, request.first_tokens};
  if (request.rope != nullptr) options.rope = &request.rope->Of(side.layer);
  const double bytes = type.store(type, side, options, stored.difference);
  for (uint64_t i = 0; i < side.values.size(); ++i) {
    float& value = stored.difference[i];
    stored.not_finite += !std::isfinite(value);
    value -= side.values[i];
    stored.noise += static_cast<double>(value) * static_cast<double>(value);
    stored.signal += static_cast<double>(side.values[i]) * static_cast<double>(side.values[i]);
  }
  const uint64_t full = FullTokens(request, type.TailOf(side.is_key), side.tokens);
  if (full == side.tokens) stored.noise = 0;  // no token is stored by this type
  const double share = static_cast<double>(full) / static_cast<double>(side.tokens);
  stored.bytes = (1 - share) * bytes + share * 2 * static_cast<double>(side.values.size());
  return stored;
}

void Append(const PairRows& from, PairRows& to) {
  const auto append = [](const std::vector<double>& more, std::vector<double>& all) {
    all.insert(all.end(), more.begin(), more.end());
  };
  append(from.kl, to.kl);
  append(from.moved, to.moved);
  append(from.top8, to.top8);
  append(from.top64, to.top64);
  append(from.error2, to.error2);
  append(from.norm2, to.norm2);
  append(from.changed2, to.changed2);
  append(from.dot, to.dot);
  to.log_p_change.resize(from.log_p_change.size());
  for (size_t s = 0; s < from.log_p_change.size(); ++s)
    append(from.log_p_change[s], to.log_p_change[s]);
}

// [pair][query head], from what `measure` finds in each tile of each head.
template <typename Measure>
std::vector<std::vector<PairRows>> MeasureTiles(const LayerAttention& attention,
                                                const StoredLayer& stored,
                                                const StoreRequest& request, size_t pairs,
                                                const eviction::MeasuredRows& rows,
                                                ThreadPool& pool, const Measure& measure) {
  const uint32_t heads = attention.query_heads();
  const uint64_t tiles = CeilDiv(rows.positions.size(), kTileRows);
  std::vector<std::vector<PairRows>> of_tile(heads * tiles);  // [head][tile] by pair
  pool.ParallelFor(of_tile.size(), [&](uint64_t i) {
    const uint64_t begin = i % tiles * kTileRows;
    const auto all = std::span(rows.positions);
    Tile tile(attention, stored, request, static_cast<uint32_t>(i / tiles),
              all.subspan(begin, std::min(kTileRows, all.size() - begin)));
    measure(tile, of_tile[i]);
  });
  std::vector<std::vector<PairRows>> of_pair(pairs, std::vector<PairRows>(heads));
  for (size_t p = 0; p < pairs; ++p) {
    for (size_t i = 0; i < of_tile.size(); ++i) Append(of_tile[i][p], of_pair[p][i / tiles]);
  }
  return of_pair;
}

}  // namespace

double StoredSide::snr_db() const { return 10 * std::log10(signal / noise); }

void RoundQueries(const quant::CacheType& type, const StoreRequest& request, uint32_t dim,
                  std::span<float> queries) {
  if (!type.dtype || *type.dtype == DType::kF16) return;
  if (*type.dtype == DType::kBF16) {
    for (float& q : queries) q = BF16ToF32(F32ToBF16(q));
    return;
  }
  if (dim % kBlockValues != 0) return;  // no engine multiplies such heads
  const quant::StoreOptions options{request.rounding, request.rotate, nullptr};
  const uint32_t size = type.IsRotated(true, dim, options) ? HadamardSize(false, dim) : 0;
  if (size != 0) HadamardScaledFirst(queries.data(), queries.size(), size);
  std::vector<std::byte> blocks(BytesOf(DType::kQ8_0, queries.size()));
  QuantiseBlocks(DType::kQ8_0, queries, blocks.data(), request.rounding);
  ToFloats(DType::kQ8_0, blocks, queries);
  if (size != 0) HadamardScaledFirst(queries.data(), queries.size(), size);
}

StoredLayer StoreLayer(const LayerAttention& attention, uint32_t layers,
                       const StoreRequest& request, ThreadPool& pool) {
  StoredLayer stored;
  const KvTensor& k = attention.kv().k;
  stored.tokens = k.tokens();
  stored.k = GatherFloats(k, 0, stored.tokens, Order::kTokenHeadDim);
  if (attention.kv().v)
    stored.v = GatherFloats(*attention.kv().v, 0, stored.tokens, Order::kTokenHeadDim);
  stored.k_stored.resize(request.k_types.size());
  stored.v_stored.resize(attention.kv().v ? request.v_types.size() : 0);
  const DType model = k.dtype == DType::kBF16 ? DType::kBF16 : DType::kF16;
  const size_t keys = stored.k_stored.size();
  pool.ParallelFor(keys + stored.v_stored.size(), [&](uint64_t i) {
    const bool is_key = i < keys;
    const KvTensor& tensor = is_key ? k : *attention.kv().v;
    const quant::Side side{is_key ? stored.k : stored.v,
                           stored.tokens,
                           tensor.heads,
                           tensor.head_dim,
                           is_key,
                           attention.layer(),
                           layers,
                           model};
    if (is_key) {
      stored.k_stored[i] = Store(*request.k_types[i], side, request);
    } else {
      stored.v_stored[i - keys] = Store(*request.v_types[i - keys], side, request);
    }
  });
  return stored;
}

std::vector<std::vector<PairRows>> MeasurePairs(
    const LayerAttention& attention, const StoredLayer& stored, const StoreRequest& request,
    const std::vector<TypePair>& pairs, const eviction::MeasuredRows& rows, ThreadPool& pool) {
  return MeasureTiles(attention, stored, request, pairs.size(), rows, pool,
                      [&](Tile& tile, std::vector<PairRows>& out) { tile.Run(pairs, out); });
}

std::vector<std::vector<PairRows>> MeasureKept(
    const LayerAttention& attention, const StoredLayer& stored, const StoreRequest& request,
    std::span<const KeptPair> kept, const eviction::MeasuredRows& rows, ThreadPool& pool) {
  return MeasureTiles(attention, stored, request, kept.size(), rows, pool,
                      [&](Tile& tile, std::vector<PairRows>& out) { tile.RunKept(kept, out); });
}

}  // namespace kv::quantisation
