// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Measures the compression step in attention, against the full cache and against simpler methods of
// equal size.
#include "lib/engines/infinilm/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "lib/core/base/half.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

void AppendRow(const FloatMatrix& from, uint64_t row, std::vector<float>& to) {
  to.insert(to.end(), from.row(row), from.row(row) + from.columns);
}

void AppendMean(const FloatMatrix& from, const TokenRange& range, std::vector<float>& to) {
  for (uint64_t d = 0; d < from.columns; ++d) {
    double sum = 0;
    for (uint64_t t = range.begin; t < range.end; ++t) sum += static_cast<double>(from.row(t)[d]);
    to.push_back(static_cast<float>(sum / static_cast<double>(range.end - range.begin)));
  }
}

enum class Kind { kMlp, kMeanPool, kDrop, kKnorm, kInt };

struct Method {
  std::string_view name;
  Kind kind;
  bool log_bias;  // true: each key's score gets the log of the number of tokens that it represents
  int bits;       // 0: not quantised
  std::string_view description;
};
constexpr Method kMethods[] = {
    {"mlp", Kind::kMlp, false, 0, "the step"},
    {"mlp+log", Kind::kMlp, true, 0,
     "the step, with scores of compressed tokens raised by the log of the group size (no engine "
     "does this)"},
    {"mean-pool", Kind::kMeanPool, false, 0, "mean of each group instead of the MLP"},
    {"mean-pool+log", Kind::kMeanPool, true, 0, "mean-pool, scores raised by the log of the size"},
    {"drop", Kind::kDrop, false, 0, "the last token of each group"},
    {"knorm", Kind::kKnorm, false, 0, "as many tokens, chosen by the smallest key norms"},
    {"int8", Kind::kInt, false, 8,
     "symmetric int8 with an f16 scale per token and head; tokens that still do not fit are "
     "dropped by the rule of knorm"},
    {"int4", Kind::kInt, false, 4, "as int8, with 4 bits"},
};

// K and V of one layer as floats, [head][token][dim].
struct LayerValues {
  std::vector<float> k, v;
  uint64_t tokens, k_dim, v_dim;

  LayerValues(const LayerKv& layer, uint64_t token_count)
      : k(GatherFloats(layer.k, 0, token_count, Order::kHeadTokenDim)),
        v(GatherFloats(*layer.v, 0, token_count, Order::kHeadTokenDim)),
        tokens(token_count),
        k_dim(layer.k.head_dim),
        v_dim(layer.v->head_dim) {}

  FloatMatrix K(uint64_t head, uint64_t count) const {
    return {&k[head * tokens * k_dim], count, k_dim, k_dim};
  }
  FloatMatrix V(uint64_t head, uint64_t count) const {
    return {&v[head * tokens * v_dim], count, v_dim, v_dim};
  }
};

// The query rows of one head on both sides of the comparison.
struct Asked {
  std::vector<float> full, moved;
};

class Measurement {
 public:
  Measurement(const Snapshot& cache, const Snapshot& compressed, const StepPlan& plan,
              const QualityOptions& options)
      : cache_(cache), compressed_(compressed), plan_(plan), options_(options) {
    sources_ = plan.Sources();
    if (options.queries) {
      positions_ = options.queries->positions;
    } else {
      const uint64_t rows = std::min(options.key_queries, plan.tokens);
      for (uint64_t i = 0; i < rows; ++i) {
        positions_.push_back(static_cast<int64_t>(plan.tokens - rows + i));
      }
    }
    // Rows before the end of the prefill are treated as the step right after it.
    const auto end = static_cast<int64_t>(plan.tokens);
    last_ = end;
    for (const int64_t position : positions_) {
      seen_.push_back(std::max(position, end - 1));
      last_ = std::max(last_, position + 1);
    }
    moves_ = options.rope && options.positions == PositionRule::kNewLength;
    if (options.rope) MakeTables(*options.rope);
  }

  StepQuality Run(ThreadPool& pool) {
    StepQuality out;
    out.queries = options_.queries ? "recorded" : "keys-as-queries";
    out.query_rows = positions_.size();
    out.positions_moved = moves_;
    for (const Method& method : kMethods) {
      MethodQuality made;
      made.name = method.name;
      made.description = method.description;
      made.moved = moves_ && method.kind == Kind::kMlp;
      out.methods.push_back(std::move(made));
    }
    std::vector<AttentionSamples> all(std::size(kMethods));
    for (size_t i = 0; i < cache_.layers.size(); ++i) RunLayer(i, pool, all, out);
    for (size_t m = 0; m < all.size(); ++m) out.methods[m].all = all[m].Summarise();
    return out;
  }

 private:
  // Rotations of the query rows, for all layers with the same rotation.
  struct QueryTables {
    Rope rope;
    uint32_t head_dim;
    RopeTable to_end;    // moves each row's substitute to the position right after the prompt
    RopeTable to_moved;  // moves the substitute to the position after the compression step
  };

  void MakeTables(const ModelRope& model) {
    const auto end = static_cast<int64_t>(plan_.tokens);
    std::vector<int64_t> to_end;
    for (const int64_t position : positions_)
      to_end.push_back(std::max<int64_t>(end - position, 0));
    const int64_t to_moved = static_cast<int64_t>(plan_.new_length) - end;
    for (const LayerKv& layer : cache_.layers) {
      const Rope& rope = model.Of(ModelNumber(layer));
      const uint32_t dim = layer.k.head_dim;
      const auto known = std::find_if(
          tables_.begin(), tables_.end(),
          [&](const QueryTables& tables) { return tables.head_dim == dim && tables.rope == rope; });
      tables_of_.push_back(static_cast<size_t>(known - tables_.begin()));
      if (known != tables_.end()) continue;
      RequireFit(rope, dim);
      RequireOneSetOfFrequencies(rope, static_cast<uint64_t>(last_), "moving queries");
      tables_.push_back({rope, dim, {rope, dim, to_end}, {rope, dim, std::span(&to_moved, 1)}});
    }
  }

  void RunLayer(size_t index, ThreadPool& pool, std::vector<AttentionSamples>& all,
                StepQuality& out) {
    const LayerKv& layer = cache_.layers[index];
    const uint32_t kv_heads = layer.k.heads;
    const uint32_t query_heads = options_.queries ? options_.queries->query_heads : kv_heads;
    if (query_heads == 0 || query_heads % kv_heads != 0) {
      throw Error(Finding::kTraceMismatch, "{} query heads are not a multiple of {} kv heads",
                  query_heads, kv_heads)
          .In(fmt::format("layer {}", layer.index));
    }
    const uint64_t stored = std::min(static_cast<uint64_t>(last_), layer.k.tokens());
    const LayerValues full(layer, stored);
    const LayerValues small(compressed_.layers[index], plan_.new_length);
    std::vector<std::vector<AttentionRows>> rows(std::size(kMethods),
                                                 std::vector<AttentionRows>(query_heads));
    std::atomic<bool> recorded{true};
    pool.ParallelFor(query_heads, [&](uint64_t head) {
      const uint64_t kv_head = head / (query_heads / kv_heads);
      Asked asked;
      if (!Ask(index, static_cast<uint32_t>(head), full, asked)) {
        recorded = false;
        return;
      }
      for (size_t m = 0; m < std::size(kMethods); ++m) {
        rows[m][head] = Compare(kMethods[m], index, full, small, kv_head, asked);
      }
    });
    if (!recorded) return;
    out.query_heads = query_heads;
    out.bytes_full += plan_.tokens * (layer.k.row_bytes() + layer.v->row_bytes());
    out.norm_ratios.push_back({layer.index, ComputeNormRatio(full, small, kv_heads, false),
                               ComputeNormRatio(full, small, kv_heads, true)});
    for (size_t m = 0; m < std::size(kMethods); ++m) {
      MethodQuality::Layer made;
      made.layer = layer.index;
      for (const AttentionRows& head : rows[m]) made.heads.push_back(Summarise({&head, 1}));
      made.all = Summarise(rows[m]);
      all[m].Add(rows[m]);
      out.methods[m].tokens = CountTokens(kMethods[m], layer);
      out.methods[m].bytes += CountBytes(kMethods[m], layer);
      out.methods[m].layers.push_back(std::move(made));
    }
  }

  // Reads the query rows of one head, and the same rows moved to their positions after the step.
  bool Ask(size_t layer, uint32_t head, const LayerValues& full, Asked& asked) const {
    const uint64_t dim = full.k_dim, rows = positions_.size();
    if (options_.queries) {
      if (!options_.queries->read(cache_.layers[layer].index, head, asked.full)) return false;
      KV_ASSERT(asked.full.size() == rows * dim);
    } else {
      const FloatMatrix k = full.K(head, plan_.tokens);
      asked.full.assign(k.row(plan_.tokens - rows), k.row(plan_.tokens - rows) + rows * dim);
    }
    if (options_.rope) {
      const RopeTable& to_end = tables_[tables_of_[layer]].to_end;
      for (uint64_t i = 0; i < rows; ++i) to_end.Rotate(i, 1, &asked.full[i * dim]);
    }
    asked.moved = asked.full;
    if (moves_) Move(layer, rows, asked.moved.data());
    return true;
  }

  void Move(size_t layer, uint64_t rows, float* values) const {
    tables_[tables_of_[layer]].to_moved.Rotate(0, static_cast<uint32_t>(rows), values);
  }

  uint64_t CountTokens(const Method& method, const LayerKv& layer) const {
    if (method.bits == 0) return plan_.new_length;
    const uint64_t budget = plan_.new_length * (layer.k.row_bytes() + layer.v->row_bytes());
    return std::min(plan_.tokens, budget / QuantisedTokenBytes(method, layer));
  }

  static uint64_t QuantisedTokenBytes(const Method& method, const LayerKv& layer) {
    return layer.k.heads * QuantisedRowBytes(layer.k.head_dim, method.bits) +
           layer.v->heads * QuantisedRowBytes(layer.v->head_dim, method.bits);
  }

  uint64_t CountBytes(const Method& method, const LayerKv& layer) const {
    return CountTokens(method, layer) * (method.bits == 0
                                             ? layer.k.row_bytes() + layer.v->row_bytes()
                                             : QuantisedTokenBytes(method, layer));
  }

  SmallCache Shrink(const Method& method, const LayerKv& layer, const LayerValues& full,
                    const LayerValues& small, uint64_t head) const {
    const FloatMatrix k = full.K(head, plan_.tokens), v = full.V(head, plan_.tokens);
    switch (method.kind) {
      case Kind::kMlp: {
        const FloatMatrix a = small.K(head, plan_.new_length), b = small.V(head, plan_.new_length);
        return {
            {a.data, a.data + a.rows * a.columns}, {b.data, b.data + b.rows * b.columns}, sources_};
      }
      case Kind::kMeanPool:
        return MeanPool(k, v, sources_);
      case Kind::kDrop:
        return KeepLast(k, v, sources_);
      case Kind::kKnorm:
        return KeepSmallestKeys(k, v, plan_.new_length);
      case Kind::kInt:
        break;
    }
    SmallCache out = KeepSmallestKeys(k, v, CountTokens(method, layer));
    QuantiseRows(out.k, full.k_dim, method.bits);
    QuantiseRows(out.v, full.v_dim, method.bits);
    return out;
  }

  AttentionRows Compare(const Method& method, size_t layer, const LayerValues& full,
                        const LayerValues& small, uint64_t head, const Asked& asked) const {
    SmallCache made = Shrink(method, cache_.layers[layer], full, small, head);
    const bool moved = moves_ && method.kind == Kind::kMlp;
    // Tokens after the compressed prompt are kept, at positions that move with the queries.
    const uint64_t later = full.tokens - plan_.tokens;
    if (later > 0) {
      const FloatMatrix k = full.K(head, full.tokens), v = full.V(head, full.tokens);
      made.k.insert(made.k.end(), k.row(plan_.tokens), k.row(plan_.tokens) + later * full.k_dim);
      made.v.insert(made.v.end(), v.row(plan_.tokens), v.row(plan_.tokens) + later * full.v_dim);
      if (moved) Move(layer, later, &made.k[made.k.size() - later * full.k_dim]);
      for (uint64_t t = plan_.tokens; t < full.tokens; ++t) made.sources.push_back({t, t + 1});
    }
    std::vector<int64_t> positions;
    std::vector<float> bias;
    for (const TokenRange& range : made.sources) {
      positions.push_back(static_cast<int64_t>(range.end) - 1);
      if (method.log_bias) {
        bias.push_back(std::log(static_cast<float>(range.end - range.begin)));
      }
    }
    const uint64_t rows = seen_.size(), keys = made.sources.size();
    const HeadQueries before{MakeMatrix(asked.full, rows, full.k_dim), seen_};
    const HeadQueries after{MakeMatrix(moved ? asked.moved : asked.full, rows, full.k_dim), seen_};
    const HeadCache whole{full.K(head, full.tokens), full.V(head, full.tokens), {}, {}};
    const HeadCache changed{MakeMatrix(made.k, keys, full.k_dim),
                            MakeMatrix(made.v, keys, full.v_dim), positions, bias};
    return CompareCaches(before, whole, after, changed, made.sources,
                         GetLayerRule(cache_.layers[layer].index));
  }

  AttentionRule GetLayerRule(uint32_t index) const {
    return options_.queries ? options_.queries->rule_of(index) : AttentionRule();
  }

  std::optional<double> ComputeNormRatio(const LayerValues& full, const LayerValues& small,
                                         uint32_t heads, bool is_value) const {
    const uint64_t dim = is_value ? full.v_dim : full.k_dim;
    const auto norm = [&](const FloatMatrix& m, uint64_t row) {
      double sum = 0;
      for (uint64_t d = 0; d < dim; ++d) {
        sum += static_cast<double>(m.row(row)[d]) * static_cast<double>(m.row(row)[d]);
      }
      return std::sqrt(sum);
    };
    double total = 0;
    uint64_t count = 0;
    for (uint64_t head = 0; head < heads; ++head) {
      const FloatMatrix from = is_value ? full.V(head, plan_.tokens) : full.K(head, plan_.tokens);
      const FloatMatrix to =
          is_value ? small.V(head, plan_.new_length) : small.K(head, plan_.new_length);
      for (uint64_t j = 0; j < sources_.size(); ++j) {
        if (sources_[j].end - sources_[j].begin == 1) continue;
        double mean = 0;
        for (uint64_t t = sources_[j].begin; t < sources_[j].end; ++t) mean += norm(from, t);
        mean /= static_cast<double>(sources_[j].end - sources_[j].begin);
        if (mean > 0) {
          total += norm(to, j) / mean;
          ++count;
        }
      }
    }
    if (count == 0) return std::nullopt;
    return total / static_cast<double>(count);
  }

  const Snapshot& cache_;
  const Snapshot& compressed_;
  const StepPlan& plan_;
  const QualityOptions& options_;
  std::vector<TokenRange> sources_;
  // positions of the query rows as recorded, and for the causal mask
  std::vector<int64_t> positions_, seen_;
  int64_t last_ = 0;  // tokens that some query sees
  bool moves_ = false;
  std::vector<QueryTables> tables_;  // empty if RoPE is unknown
  std::vector<size_t> tables_of_;    // [layer]: index into tables_
};

}  // namespace

SmallCache MeanPool(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources) {
  SmallCache out;
  out.sources.assign(sources.begin(), sources.end());
  for (const TokenRange& range : sources) {
    AppendMean(k, range, out.k);
    AppendMean(v, range, out.v);
  }
  return out;
}

SmallCache KeepLast(const FloatMatrix& k, const FloatMatrix& v,
                    std::span<const TokenRange> sources) {
  SmallCache out;
  for (const TokenRange& range : sources) {
    AppendRow(k, range.end - 1, out.k);
    AppendRow(v, range.end - 1, out.v);
    out.sources.push_back({range.end - 1, range.end});
  }
  return out;
}

SmallCache KeepSmallestKeys(const FloatMatrix& k, const FloatMatrix& v, uint64_t count) {
  std::vector<double> norms(k.rows);
  for (uint64_t t = 0; t < k.rows; ++t) {
    for (uint64_t d = 0; d < k.columns; ++d) {
      norms[t] += static_cast<double>(k.row(t)[d]) * static_cast<double>(k.row(t)[d]);
    }
    if (std::isnan(norms[t])) norms[t] = INFINITY;
  }
  std::vector<uint64_t> order(k.rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return norms[a] < norms[b]; });
  order.resize(std::min(count, k.rows));
  std::sort(order.begin(), order.end());
  SmallCache out;
  for (const uint64_t t : order) {
    AppendRow(k, t, out.k);
    AppendRow(v, t, out.v);
    out.sources.push_back({t, t + 1});
  }
  return out;
}

void QuantiseRows(std::vector<float>& rows, uint64_t columns, int bits) {
  const auto most = static_cast<float>((1 << (bits - 1)) - 1);
  for (size_t at = 0; at + columns <= rows.size(); at += columns) {
    float largest = 0;
    for (uint64_t d = 0; d < columns; ++d) largest = std::max(largest, std::abs(rows[at + d]));
    const float scale = F16ToF32(F32ToF16(largest / most));
    for (uint64_t d = 0; d < columns; ++d) {
      float& x = rows[at + d];
      // A row too small for an f16 scale becomes zero; because the scale is rounded, x / scale may
      // exceed `most`.
      x = scale == 0 ? 0 : std::clamp(std::nearbyint(x / scale), -most, most) * scale;
    }
  }
}

uint64_t QuantisedRowBytes(uint64_t columns, int bits) {
  return (columns * static_cast<uint64_t>(bits) + 7) / 8 + sizeof(uint16_t);
}

StepQuality MeasureStep(const Snapshot& cache, const Snapshot& compressed, const StepPlan& plan,
                        const QualityOptions& options, ThreadPool& pool) {
  KV_ASSERT(cache.layers.size() == compressed.layers.size());
  return Measurement(cache, compressed, plan, options).Run(pool);
}

}  // namespace kv
