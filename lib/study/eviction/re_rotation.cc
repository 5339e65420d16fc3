// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/re_rotation.h"

#include <algorithm>

namespace kv::eviction {
namespace {

// The cache of one head as one row finds it.
struct TurnedCache {
  std::vector<float> k, v;
  std::vector<int64_t> positions;   // that keys stand at now
  std::vector<TokenRange> sources;  // the tokens that they are
};

TurnedCache CacheOf(const KeepPlan& held, uint64_t row, std::span<const float> k,
                    std::span<const float> v, size_t dim, size_t v_dim, const Rope& rope) {
  TurnedCache cache;
  const std::vector<uint32_t> tokens = TokensOf(held);
  std::vector<int64_t> turns;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t t = tokens[i];
    const uint64_t place = row - (tokens.size() - 1 - i);  // in a cache without gaps
    turns.push_back(static_cast<int64_t>(place - t));
    cache.positions.push_back(static_cast<int64_t>(place));
    cache.sources.push_back({t, t + 1});
    cache.k.insert(cache.k.end(), k.begin() + static_cast<std::ptrdiff_t>(t * dim),
                   k.begin() + static_cast<std::ptrdiff_t>((t + 1) * dim));
    if (v.empty()) continue;
    cache.v.insert(cache.v.end(), v.begin() + static_cast<std::ptrdiff_t>(t * v_dim),
                   v.begin() + static_cast<std::ptrdiff_t>((t + 1) * v_dim));
  }
  const RopeTable table(rope, static_cast<uint32_t>(dim), turns);
  if (!table.turns_anything()) return cache;
  for (size_t i = 0; i < tokens.size(); ++i) table.Rotate(i, 1, &cache.k[i * dim]);
  return cache;
}

}  // namespace

AttentionRows CompareReRotated(const LayerAttention& attention, const LayerPlan& plan,
                               uint32_t head, std::span<const uint64_t> positions,
                               std::span<const float> k, std::span<const float> v,
                               OutputGradients gradients) {
  const size_t dim = attention.head_dim();
  const size_t v_dim = v.empty() ? 0 : attention.kv().v->head_dim;
  const uint32_t unit = plan.units == 1 ? 0 : head / attention.group();
  AttentionRows all;
  std::vector<float> query(dim);
  std::vector<FloatMatrix> of_row(gradients.size());
  for (size_t r = 0; r < positions.size(); ++r) {
    const uint64_t row = positions[r];
    KeepPlan held = plan.HeldBefore(unit, row);
    Append(held, {static_cast<uint32_t>(row), 1});
    const TurnedCache turned = CacheOf(held, row, k, v, dim, v_dim, *plan.turned_by);
    ReadQueries(attention.rows(), head, row - attention.first_row(), 1, query.data());
    const int64_t position = static_cast<int64_t>(row);
    const HeadQueries queries{MatrixOf(query, 1, dim), {&position, 1}};
    FloatMatrix full_v, turned_v;
    if (!v.empty()) {
      full_v = MatrixOf(v, row + 1, v_dim);
      turned_v = MatrixOf(turned.v, turned.positions.size(), v_dim);
    }
    for (size_t sample = 0; sample < gradients.size(); ++sample) {
      of_row[sample] = {gradients[sample].row(r), 1, v_dim, v_dim};
    }
    AppendRows(
        CompareCaches(
            queries, {MatrixOf(k, row + 1, dim), full_v, {}, {}}, queries,
            {MatrixOf(turned.k, turned.positions.size(), dim), turned_v, turned.positions, {}},
            turned.sources, attention.rule(), of_row),
        all);
  }
  return all;
}

}  // namespace kv::eviction
