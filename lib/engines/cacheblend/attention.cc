// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Attention errors of a blend, for many sets of recomputed tokens at once: dot products and
// exponentials are computed once per tile, so that each set only picks columns and divides.
#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/engines/cacheblend/deviation.h"
#include "lib/study/attention/probabilities.h"

namespace kv::blend {
namespace {

// Number of queries measured at once.
constexpr uint64_t kTileRows = 32;
// A softmax whose weights, relative to the other version's largest score, sum to less than this is
// recomputed relative to its own largest score.
constexpr double kLeastWeight = 1e-200;

// Keys and values of one kv head in both versions, with room for a blend.
struct HeadKv {
  uint64_t tokens, k_dim, v_dim;
  std::vector<float> full_k, old_k, full_v, old_v;

  HeadKv(const CachePair& caches, size_t layer, uint32_t head)
      : tokens(caches.tokens()),
        k_dim(caches.layers()[layer].k_dim),
        v_dim(caches.layers()[layer].v_dim),
        full_k(caches.FullHead(layer, false, head)),
        old_k(caches.OldHead(layer, false, head)),
        full_v(caches.FullHead(layer, true, head)),
        old_v(caches.OldHead(layer, true, head)) {}

  void BlendV(const std::vector<uint8_t>& recomputed, std::vector<float>& blended) const {
    blended = old_v;
    for (uint64_t t = 0; t < tokens; ++t) {
      if (recomputed[t] != 0) std::copy_n(&full_v[t * v_dim], v_dim, &blended[t * v_dim]);
    }
  }
};

// The computation of a head's scores: the layer's rule with its scale resolved.
struct Scoring {
  AttentionRule rule;
  double scale;

  Scoring(const QueryRows& queries, uint64_t k_dim)
      : rule(MakeRule(*queries.trace, *queries.layer)), scale(rule.ScaleFor(k_dim)) {}

  double Score(float product) const {
    return Softcapped(scale * static_cast<double>(product), rule.softcap);
  }
};

// Writes the probabilities of one query over keys [first, visible); others are 0.
void RowProbabilities(const Scoring& scoring, uint64_t first, uint64_t visible,
                      std::span<const float> products, std::span<double> p) {
  std::fill(p.begin(), p.end(), 0.0);
  for (uint64_t j = first; j < visible; ++j) p[j] = scoring.Score(products[j]);
  Softmax(p.subspan(first, visible - first));
}

// Writes the outputs of a tile of rows over one version of the values.
void TileOutputs(std::span<const double> p, uint64_t rows, const HeadKv& kv,
                 const std::vector<float>& values, std::vector<float>& narrow,
                 std::vector<float>& out) {
  Narrow(p.first(rows * kv.tokens), narrow);
  Outputs(narrow, rows, MakeMatrix(values, kv.tokens, kv.v_dim), out);
}

// Sums of one kv head's query heads; rows are summed over heads in head order by the caller.
struct Sums {
  double probability2 = 0;                         // |P - P'|^2
  std::vector<double> error2, full2, blend2, dot;  // figures of each row's outputs

  explicit Sums(uint64_t rows) : error2(rows), full2(rows), blend2(rows), dot(rows) {}

  void AddRow(uint64_t row, std::span<const float> full, std::span<const float> blended) {
    for (size_t d = 0; d < full.size(); ++d) {
      const double a = full[d], b = blended[d];
      error2[row] += (a - b) * (a - b);
      full2[row] += a * a;
      blend2[row] += b * b;
      dot[row] += a * b;
    }
  }
  void Add(const Sums& other) {
    probability2 += other.probability2;
    for (size_t r = 0; r < error2.size(); ++r) {
      error2[r] += other.error2[r];
      full2[r] += other.full2[r];
      blend2[r] += other.blend2[r];
      dot[r] += other.dot[r];
    }
  }
  AttentionError Result() const {
    AttentionError result;
    double error = 0, full = 0, cosines = 0;
    for (size_t r = 0; r < error2.size(); ++r) {
      error += error2[r];
      full += full2[r];
      const double norms = std::sqrt(full2[r]) * std::sqrt(blend2[r]);
      cosines += error2[r] == 0 ? 1 : norms == 0 ? 0 : dot[r] / norms;
    }
    result.dev_l2 = std::sqrt(probability2);
    result.out_rel_l2 = error == 0 ? 0 : std::sqrt(error / full);
    result.out_cos_mean = error2.empty() ? 1 : cosines / static_cast<double>(error2.size());
    return result;
  }
};

double Distance2(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// Dot products of a tile of queries with both versions of the keys; a blend picks columns of these.
struct TileProducts {
  std::vector<float> full, old, picked;

  void Compute(const std::vector<float>& queries, uint64_t rows, const HeadKv& kv) {
    picked.resize(kv.tokens);
    const FloatMatrix q = MakeMatrix(queries, rows, kv.k_dim);
    DotProducts(q, 0, rows, MakeMatrix(kv.full_k, kv.tokens, kv.k_dim), full);
    DotProducts(q, 0, rows, MakeMatrix(kv.old_k, kv.tokens, kv.k_dim), old);
  }
  std::span<const float> Full(uint64_t row) const {
    return {&full[row * picked.size()], picked.size()};
  }
  std::span<const float> Blend(uint64_t row, const std::vector<uint8_t>& recomputed) {
    const float* a = &full[row * picked.size()];
    const float* b = &old[row * picked.size()];
    for (size_t j = 0; j < picked.size(); ++j) picked[j] = recomputed[j] != 0 ? a[j] : b[j];
    return picked;
  }
};

// exp(score - the largest of both versions) of a tile, so that each blend only picks and divides.
// Softmax() would compute an exponential per key and blend; it is not used, because it rounds
// differently and published figures have these bits.
struct TileWeights {
  std::vector<double> full, old;

  void Compute(const Scoring& scoring, std::span<const uint64_t> positions,
               const TileProducts& products, uint64_t n) {
    full.assign(positions.size() * n, 0);
    old.assign(positions.size() * n, 0);
    for (size_t r = 0; r < positions.size(); ++r) {
      const uint64_t first = scoring.rule.FirstSeen(positions[r]), visible = positions[r] + 1;
      double* a = &full[r * n];
      double* b = &old[r * n];
      double largest = -INFINITY;
      for (uint64_t j = first; j < visible; ++j) {
        a[j] = scoring.Score(products.full[r * n + j]);
        b[j] = scoring.Score(products.old[r * n + j]);
        largest = std::max({largest, a[j], b[j]});  // NaNs are skipped and stay in their columns
      }
      for (uint64_t j = first; j < visible; ++j) {
        a[j] = std::exp(a[j] - largest);
        b[j] = std::exp(b[j] - largest);
      }
    }
  }
  // Picks the probabilities of a row. Returns false if the other version's scores are so much
  // larger that these underflowed.
  bool Pick(uint64_t row, const std::vector<uint8_t>& recomputed, std::span<double> p) const {
    const double* a = &full[row * p.size()];
    const double* b = &old[row * p.size()];
    double sum = 0;
    for (size_t j = 0; j < p.size(); ++j) sum += p[j] = recomputed[j] != 0 ? a[j] : b[j];
    for (double& value : p) value /= sum;
    return !(sum < kLeastWeight);
  }
};

// Calls `body(first row, rows, queries)` for the query heads of one kv head, tile by tile of the
// given positions.
template <typename Body>
void ForTiles(const CachePair& caches, const QueryRows& queries, size_t layer, uint32_t kv_head,
              std::span<const uint64_t> positions, const Body& body) {
  const uint32_t group = queries.trace->query_heads / caches.layers()[layer].heads;
  const uint64_t dim = caches.layers()[layer].k_dim;
  std::vector<float> tile;
  for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (uint64_t first = 0; first < positions.size(); first += kTileRows) {
      const uint64_t rows = std::min<uint64_t>(kTileRows, positions.size() - first);
      tile.resize(rows * dim);
      for (uint64_t r = 0; r < rows; ++r) {
        ReadQueries(*queries.layer, head, positions[first + r] - queries.trace->q_start, 1,
                    &tile[r * dim]);
      }
      body(first, rows, tile);
    }
  }
}

std::vector<Sums> MeasureHead(const CachePair& caches, const QueryRows& queries, size_t layer,
                              uint32_t kv_head, std::span<const uint64_t> positions,
                              std::span<const std::vector<uint8_t>> recomputed) {
  const HeadKv kv(caches, layer, kv_head);
  const Scoring scoring(queries, kv.k_dim);
  const uint64_t n = kv.tokens;
  std::vector<Sums> sums(recomputed.size(), Sums(positions.size()));
  TileProducts products;
  TileWeights weights;
  std::vector<double> full_p(kTileRows * n), blend_p(kTileRows * n);
  std::vector<float> values, narrow, full_out, blend_out;
  const std::vector<uint8_t> all(n, 1);
  const auto probabilities = [&](std::span<const uint64_t> rows, const std::vector<uint8_t>& set,
                                 std::vector<double>& out) {
    for (size_t r = 0; r < rows.size(); ++r) {
      const std::span<double> p(&out[r * n], n);
      if (weights.Pick(r, set, p)) continue;
      RowProbabilities(scoring, scoring.rule.FirstSeen(rows[r]), rows[r] + 1,
                       products.Blend(r, set), p);
    }
  };
  ForTiles(caches, queries, layer, kv_head, positions,
           [&](uint64_t first, uint64_t count, const std::vector<float>& tile) {
             const std::span<const uint64_t> rows = positions.subspan(first, count);
             products.Compute(tile, count, kv);
             weights.Compute(scoring, rows, products, n);
             probabilities(rows, all, full_p);
             TileOutputs(full_p, count, kv, kv.full_v, narrow, full_out);
             for (size_t s = 0; s < recomputed.size(); ++s) {
               probabilities(rows, recomputed[s], blend_p);
               sums[s].probability2 +=
                   Distance2({full_p.data(), count * n}, {blend_p.data(), count * n});
               kv.BlendV(recomputed[s], values);
               TileOutputs(blend_p, count, kv, values, narrow, blend_out);
               for (uint64_t r = 0; r < count; ++r) {
                 sums[s].AddRow(first + r, {&full_out[r * kv.v_dim], kv.v_dim},
                                {&blend_out[r * kv.v_dim], kv.v_dim});
               }
             }
           });
  return sums;
}

}  // namespace

std::vector<AttentionError> MeasureAttention(const CachePair& caches, const QueryRows& queries,
                                             size_t layer, uint64_t begin,
                                             std::span<const std::vector<uint8_t>> recomputed,
                                             ThreadPool& pool) {
  std::vector<uint64_t> positions;
  for (uint64_t t = begin; t < caches.tokens(); ++t) positions.push_back(t);
  const uint32_t heads = caches.layers()[layer].heads;
  std::vector<std::vector<Sums>> by_head(heads);
  pool.ParallelFor(heads, [&](uint64_t head) {
    by_head[head] =
        MeasureHead(caches, queries, layer, static_cast<uint32_t>(head), positions, recomputed);
  });
  std::vector<AttentionError> errors;
  for (size_t s = 0; s < recomputed.size(); ++s) {
    Sums sums(positions.size());
    for (const std::vector<Sums>& head : by_head) sums.Add(head[s]);
    errors.push_back(sums.Result());
  }
  return errors;
}

std::vector<uint64_t> ExtraKeys(std::span<const uint64_t> imp, uint64_t tokens) {
  std::vector<uint64_t> extra;
  for (size_t i = 0; i < imp.size(); ++i) extra.push_back(i + (tokens - imp.size()) - imp[i]);
  return extra;
}

namespace {

struct LeakSums {
  double mass = 0;
  Sums leak, full;  // leak: leaking against exact mask; full: chosen mask against the full run
};

LeakSums MeasureLeakHead(const CachePair& caches, const QueryRows& queries, size_t layer,
                         uint32_t kv_head, std::span<const uint64_t> positions,
                         std::span<const uint64_t> visible, const std::vector<uint8_t>& recomputed,
                         Mask mask) {
  const HeadKv kv(caches, layer, kv_head);
  const Scoring scoring(queries, kv.k_dim);
  const uint64_t n = kv.tokens;
  std::vector<float> values;
  kv.BlendV(recomputed, values);
  LeakSums sums{0, Sums(positions.size()), Sums(positions.size())};
  TileProducts products;
  std::vector<double> full_p(kTileRows * n), exact_p(kTileRows * n), leak_p(kTileRows * n);
  std::vector<float> narrow, full_out, exact_out, leak_out;
  ForTiles(caches, queries, layer, kv_head, positions,
           [&](uint64_t first, uint64_t rows, const std::vector<float>& tile) {
             products.Compute(tile, rows, kv);
             for (uint64_t r = 0; r < rows; ++r) {
               const uint64_t position = positions[first + r], sees = visible[first + r];
               RowProbabilities(scoring, scoring.rule.FirstSeen(position), position + 1,
                                products.Full(r), {&full_p[r * n], n});
               const auto blended = products.Blend(r, recomputed);
               RowProbabilities(scoring, scoring.rule.FirstSeen(position), position + 1, blended,
                                {&exact_p[r * n], n});
               RowProbabilities(scoring, scoring.rule.FirstSeen(sees - 1), sees, blended,
                                {&leak_p[r * n], n});
               for (uint64_t j = position + 1; j < sees; ++j) sums.mass += leak_p[r * n + j];
               const std::vector<double>& chosen = mask == Mask::kExact ? exact_p : leak_p;
               sums.full.probability2 += Distance2({&full_p[r * n], n}, {&chosen[r * n], n});
             }
             TileOutputs(full_p, rows, kv, kv.full_v, narrow, full_out);
             TileOutputs(exact_p, rows, kv, values, narrow, exact_out);
             TileOutputs(leak_p, rows, kv, values, narrow, leak_out);
             const std::vector<float>& chosen = mask == Mask::kExact ? exact_out : leak_out;
             for (uint64_t r = 0; r < rows; ++r) {
               const uint64_t at = r * kv.v_dim;
               sums.leak.AddRow(first + r, {&exact_out[at], kv.v_dim}, {&leak_out[at], kv.v_dim});
               sums.full.AddRow(first + r, {&full_out[at], kv.v_dim}, {&chosen[at], kv.v_dim});
             }
           });
  return sums;
}

}  // namespace

LeakError MeasureLeak(const CachePair& caches, const QueryRows& queries, size_t layer,
                      std::span<const uint64_t> imp, uint64_t keys, Mask mask, ThreadPool& pool) {
  std::vector<uint8_t> recomputed(caches.tokens());
  for (const uint64_t t : imp) recomputed[t] = 1;
  std::fill(recomputed.begin() + static_cast<std::ptrdiff_t>(caches.covered()), recomputed.end(),
            1);
  std::vector<uint64_t> positions, visible;
  const uint64_t count = std::min<uint64_t>(imp.size(), kMostLeakQueries);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = i * imp.size() / count;
    positions.push_back(imp[at]);
    visible.push_back(at + (keys - imp.size()) + 1);
  }
  const uint32_t heads = caches.layers()[layer].heads;
  std::vector<LeakSums> by_head(heads, LeakSums{0, Sums(0), Sums(0)});
  pool.ParallelFor(heads, [&](uint64_t head) {
    by_head[head] = MeasureLeakHead(caches, queries, layer, static_cast<uint32_t>(head), positions,
                                    visible, recomputed, mask);
  });
  LeakSums sums{0, Sums(count), Sums(count)};
  for (const LeakSums& head : by_head) {
    sums.mass += head.mass;
    sums.leak.Add(head.leak);
    sums.full.Add(head.full);
  }
  LeakError error;
  error.queries = count;
  if (count == 0) return error;
  error.leaked_mass_mean =
      sums.mass / (static_cast<double>(count) * static_cast<double>(queries.trace->query_heads));
  error.leak_out_rel_l2 = sums.leak.Result().out_rel_l2;
  error.against_full = sums.full.Result();
  return error;
}

}  // namespace kv::blend
