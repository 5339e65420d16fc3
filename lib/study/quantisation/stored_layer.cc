// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Attention of a layer whose K and V are stored in smaller types, tile by tile: changes of scores,
// probabilities and outputs are computed as differences.
#include "lib/study/quantisation/stored_layer.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/dense/gemm.h"
#include "lib/study/dense/softmax_change.h"

namespace kv::quantisation {
namespace {

// Rows of one query head that are processed at once.
constexpr uint64_t kTileRows = 64;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr uint32_t kTop8 = 8, kTop64 = 64;

double ShareAmong(const std::vector<uint32_t>& before, const std::vector<uint32_t>& after,
                  size_t most) {
  if (before.size() < most || after.size() < most) return kNan;
  size_t hits = 0;
  for (size_t i = 0; i < most; ++i) {
    hits += std::find(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(most),
                      before[i]) != after.begin() + static_cast<std::ptrdiff_t>(most);
  }
  return static_cast<double>(hits) / static_cast<double>(most);
}

// One head's rows of a tile, for all pairs.
class Tile {
 public:
  Tile(const LayerAttention& attention, const StoredLayer& stored, const StoreRequest& request,
       uint32_t head, std::span<const uint64_t> rows)
      : attention_(attention),
        stored_(stored),
        request_(request),
        head_(head),
        rows_(rows),
        keys_(rows.back() + 1),
        dim_(attention.head_dim()),
        v_dim_(attention.kv().v ? attention.kv().v->head_dim : 0),
        k_row_(attention.kv().k.channels()),
        v_row_(attention.kv().v ? attention.kv().v->channels() : 0),
        k_at_(head / attention.group() * uint64_t{dim_}),
        v_at_(head / attention.group() * uint64_t{v_dim_}) {}

  void Run(const std::vector<TypePair>& pairs, std::vector<PairRows>& out) {
    Prepare();
    out.resize(pairs.size());
    std::vector<uint32_t> keys;
    for (const TypePair& pair : pairs) {
      if (std::find(keys.begin(), keys.end(), pair.k) == keys.end()) keys.push_back(pair.k);
    }
    for (const uint32_t k : keys) {
      PairRows of_keys;
      ChangeKeys(k, of_keys);
      ChangeOutputsByKeys();
      for (size_t i = 0; i < pairs.size(); ++i) {
        if (pairs[i].k != k) continue;
        out[i] = of_keys;
        ChangeOutputs(pairs[i], out[i]);
      }
    }
  }

  // Measures caches that also lost keys; figures of attention weights are not computed.
  void RunKept(std::span<const KeptPair> kept, std::vector<PairRows>& out) {
    is_plain_ = true;
    Prepare();
    out.resize(kept.size());
    std::vector<uint8_t> done(kept.size());
    for (size_t first = 0; first < kept.size(); ++first) {
      if (done[first]) continue;
      const uint32_t k = kept[first].types.k;
      const bool moves =
          k != TypePair::kFull && ChangeScores(*request_.k_types[k], stored_.k_stored[k]);
      if (moves) moves_ = change_;
      for (size_t i = first; i < kept.size(); ++i) {
        if (done[i] || kept[i].types.k != k) continue;
        Lose(kept[i].plan, moves);
        ChangeOutputsByKeys();
        for (size_t j = i; j < kept.size(); ++j) {
          if (done[j] || kept[j].types.k != k || kept[j].plan != kept[i].plan) continue;
          ChangeOutputs(kept[j].types, out[j]);
          done[j] = 1;
        }
      }
    }
  }

 private:
  // Writes P' - P of a cache without the keys that the plan has dropped; with `moves`, its scores
  // have changed by `moves_`.
  void Lose(const eviction::LayerPlan* plan, bool moves) {
    is_changed_ = plan != nullptr || moves;
    if (!is_changed_) return;
    change_.assign(rows_.size() * keys_, 0.0f);
    changed_ = p_;
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (defined_[r]) LoseRow(plan, r, moves ? &moves_[r * keys_] : nullptr);
    }
  }

  void LoseRow(const eviction::LayerPlan* plan, size_t r, const float* moves) {
    const uint64_t first = FirstSeen(r), end = rows_[r] + 1;
    const float* before = &p_[r * keys_];
    float *change = &change_[r * keys_], *now = &changed_[r * keys_];
    held_.clear();
    if (plan != nullptr) {
      const uint32_t unit = plan->units == 1 ? 0 : head_ / attention_.group();
      // Writes every key, but counts only those still held: a branch would be mispredicted.
      const std::span<const uint32_t> last_seen = plan->last_seen(unit);
      held_.resize(end - first);
      size_t held = 0;
      for (uint64_t j = first; j < end; ++j) {
        held_[held] = static_cast<uint32_t>(j);
        held += j >= last_seen.size() || last_seen[j] >= rows_[r];
      }
      held_.resize(held);
    }
    if (plan == nullptr || held_.size() == end - first) {
      if (moves == nullptr) return;
      std::copy(moves + first, moves + end, change + first);
      ChangeSoftmax(before + first, change + first, end - first);
      for (uint64_t j = first; j < end; ++j) now[j] = before[j] + change[j];
      return;
    }
    double mass = 0;
    for (const uint32_t j : held_) mass += static_cast<double>(before[j]);
    held_p_.resize(held_.size());
    held_change_.assign(held_.size(), 0.0f);
    for (size_t i = 0; i < held_.size(); ++i) {
      held_p_[i] = mass > 0 ? static_cast<float>(static_cast<double>(before[held_[i]]) / mass) : 0;
      if (moves != nullptr) held_change_[i] = moves[held_[i]];
    }
    if (moves != nullptr && mass > 0)
      ChangeSoftmax(held_p_.data(), held_change_.data(), held_.size());
    std::fill(now + first, now + end, 0.0f);
    for (size_t i = 0; i < held_.size(); ++i) now[held_[i]] = held_p_[i] + held_change_[i];
    for (uint64_t j = first; j < end; ++j) change[j] = now[j] - before[j];
  }

  uint64_t FirstSeen(size_t r) const { return attention_.rule().FirstSeen(rows_[r]); }
  bool has_gradients() const { return eviction::HasChanges(attention_); }

  // Computes probabilities and outputs of the full cache.
  void Prepare() {
    const uint64_t count = rows_.size();
    queries_.resize(count * dim_);
    for (size_t r = 0; r < count; ++r) {
      ReadQueries(attention_.rows(), head_, rows_[r] - attention_.first_row(), 1,
                  &queries_[r * dim_]);
    }
    scores_.resize(count * keys_);
    scaled_ = queries_;
    const auto scale = static_cast<float>(attention_.rule().ScaleFor(dim_));
    for (float& q : scaled_) q *= scale;
    GemmNT(scaled_.data(), dim_, &stored_.k[k_at_], k_row_, scores_.data(), keys_, count, keys_,
           dim_);
    p_ = scores_;
    largest_.resize(count);
    defined_.assign(count, 1);
    for (size_t r = 0; r < count; ++r) {
      const uint64_t first = FirstSeen(r), seen = rows_[r] + 1 - first;
      float* row = &p_[r * keys_];
      if (attention_.rule().softcap != 0) {
        const auto cap = static_cast<float>(attention_.rule().softcap);
        for (uint64_t j = first; j < first + seen; ++j) row[j] = Softcapped(row[j], cap);
      }
      defined_[r] = SoftmaxRow(row + first, seen);
      std::fill(row, row + first, 0.0f);
      std::fill(row + first + seen, row + keys_, 0.0f);
      if (!defined_[r]) std::fill(row, row + keys_, 0.0f);
      if (!is_plain_) ListLargest(row + first, seen, kTop64, {}, largest_[r]);
    }
    if (v_dim_ == 0) return;
    o_.resize(count * v_dim_);
    GemmNN(p_.data(), keys_, &stored_.v[v_at_], v_row_, o_.data(), v_dim_, count, v_dim_, keys_);
    ReadGradients();
  }

  void ReadGradients() {
    if (!has_gradients()) return;
    const GradientRows& with = *attention_.trace().gradients;
    gradients_.assign(with.samples, std::vector<float>(rows_.size() * v_dim_, NAN));
    for (uint64_t sample = 0; sample < with.samples; ++sample) {
      for (size_t r = 0; r < rows_.size(); ++r) {
        if (!with.Has(rows_[r])) continue;
        ReadGradient(attention_.trace(), attention_.rows(), sample, rows_[r], head_,
                     &gradients_[sample][r * v_dim_]);
      }
    }
  }

  // Writes P' - P and its figures.
  void ChangeKeys(uint32_t k, PairRows& out) {
    const uint64_t count = rows_.size();
    for (auto* values : {&out.kl, &out.moved}) values->assign(count, 0);
    for (auto* values : {&out.top8, &out.top64}) values->assign(count, kNan);
    is_changed_ = k != TypePair::kFull && ChangeScores(*request_.k_types[k], stored_.k_stored[k]);
    if (is_changed_) changed_.resize(count * keys_);
    std::vector<uint32_t> after;
    for (size_t r = 0; r < count; ++r) {
      const uint64_t first = FirstSeen(r), seen = rows_[r] + 1 - first;
      if (!defined_[r]) {
        for (auto* values : {&out.kl, &out.moved}) (*values)[r] = kNan;
        if (is_changed_) {
          std::fill_n(&change_[r * keys_], keys_, 0.0f);
          std::fill_n(&changed_[r * keys_], keys_, 0.0f);
        }
        continue;
      }
      if (seen > kTop8) out.top8[r] = 1;
      if (seen > kTop64) out.top64[r] = 1;
      if (!is_changed_) continue;
      float* change = &change_[r * keys_];
      const SoftmaxChange row = ChangeSoftmax(&p_[r * keys_ + first], change + first, seen);
      out.kl[r] = row.kl;
      out.moved[r] = row.moved;
      const float* before = &p_[r * keys_];
      float* now = &changed_[r * keys_];
      for (uint64_t j = 0; j < keys_; ++j) now[j] = before[j] + change[j];
      ListLargest(now + first, seen, kTop64, largest_[r], after);
      if (seen > kTop8) out.top8[r] = ShareAmong(largest_[r], after, kTop8);
      if (seen > kTop64) out.top64[r] = ShareAmong(largest_[r], after, kTop64);
    }
  }

  // Computes q' . (K' - K) + (q' - q) . K: 0 for keys that are seen in full and beyond the visible
  // ones. Returns false if nothing changes at all.
  bool ChangeScores(const quant::CacheType& type, const StoredSide& side) {
    const uint64_t count = rows_.size();
    rounded_ = queries_;
    if (request_.engine_q == EngineQ::kCpu) RoundQueries(type, request_, dim_, rounded_);
    const auto scale = static_cast<float>(attention_.rule().ScaleFor(dim_));
    bool is_rounded = false;
    moved_.resize(rounded_.size());
    for (size_t i = 0; i < rounded_.size(); ++i) {
      moved_[i] = (rounded_[i] - queries_[i]) * scale;
      is_rounded = is_rounded || moved_[i] != 0;
      rounded_[i] *= scale;
    }
    if (side.noise == 0 && !is_rounded) return false;
    change_.resize(count * keys_);
    GemmNT(rounded_.data(), dim_, &side.difference[k_at_], k_row_, change_.data(), keys_, count,
           keys_, dim_);
    if (is_rounded) {
      GemmNT(moved_.data(), dim_, &stored_.k[k_at_], k_row_, change_.data(), keys_, count, keys_,
             dim_, true);
    }
    for (size_t r = 0; r < count; ++r) {
      float* change = &change_[r * keys_];
      ZeroInFull(type, true, r, change);
      const uint64_t first = FirstSeen(r);
      std::fill(change, change + first, 0.0f);
      std::fill(change + rows_[r] + 1, change + keys_, 0.0f);
      if (attention_.rule().softcap == 0) continue;
      const auto cap = attention_.rule().softcap;
      for (uint64_t j = first; j <= rows_[r]; ++j) {
        const double score = scores_[r * keys_ + j];
        change[j] = static_cast<float>(Softcapped(score + static_cast<double>(change[j]), cap) -
                                       Softcapped(score, cap));
      }
    }
    return true;
  }

  void ZeroInFull(const quant::CacheType& type, bool is_key, size_t r, float* row) const {
    if (type.whole != nullptr) return;
    const uint64_t position = rows_[r], seen = position + 1;
    std::fill_n(row, std::min(request_.keep_first, seen), 0.0f);
    const uint64_t kept = std::min(request_.keep_last, seen);
    const uint64_t from = std::min(seen - kept, quant::CountStored(type.GetTail(is_key), seen));
    std::fill(row + from, row + seen, 0.0f);
  }
  bool KeepsAny(quant::Tail tail) const {
    return request_.keep_first + request_.keep_last > 0 || tail != quant::Tail::kNone;
  }

  // Computes (P' - P) V, which all pairs with the same type of K share.
  void ChangeOutputsByKeys() {
    if (v_dim_ == 0) return;
    of_keys_.assign(rows_.size() * v_dim_, 0.0f);
    if (!is_changed_) return;
    GemmNN(change_.data(), keys_, &stored_.v[v_at_], v_row_, of_keys_.data(), v_dim_, rows_.size(),
           v_dim_, keys_);
  }

  // Computes (P' - P) V + P' (V' - V).
  void ChangeOutputs(const TypePair& pair, PairRows& out) {
    if (v_dim_ == 0) return;
    const uint64_t count = rows_.size();
    e_ = of_keys_;
    if (pair.v != TypePair::kFull && stored_.v_stored[pair.v].noise != 0) {
      const quant::CacheType& type = *request_.v_types[pair.v];
      const std::vector<float>* weights = is_changed_ ? &changed_ : &p_;
      if (KeepsAny(type.GetTail(false))) {
        weights_ = *weights;
        for (size_t r = 0; r < count; ++r) ZeroInFull(type, false, r, &weights_[r * keys_]);
        weights = &weights_;
      }
      GemmNN(weights->data(), keys_, &stored_.v_stored[pair.v].difference[v_at_], v_row_, e_.data(),
             v_dim_, count, v_dim_, keys_, true);
    }
    StoreOutputs(out);
  }

  void StoreOutputs(PairRows& out) const {
    const uint64_t count = rows_.size();
    for (auto* values : {&out.error2, &out.norm2, &out.changed2, &out.dot})
      values->assign(count, kNan);
    out.log_p_change.assign(gradients_.size(), std::vector<double>(count, kNan));
    for (size_t r = 0; r < count; ++r) {
      if (!defined_[r]) continue;
      double error2 = 0, norm2 = 0, changed2 = 0, dot = 0;
      for (uint32_t d = 0; d < v_dim_; ++d) {
        const double full = o_[r * v_dim_ + d], error = e_[r * v_dim_ + d], changed = full + error;
        error2 += error * error;
        norm2 += full * full;
        changed2 += changed * changed;
        dot += full * changed;
      }
      if (!std::isfinite(error2)) continue;
      out.error2[r] = error2;
      out.norm2[r] = norm2;
      out.changed2[r] = changed2;
      out.dot[r] = dot;
      for (size_t sample = 0; sample < gradients_.size(); ++sample) {
        double change = 0;
        for (uint32_t d = 0; d < v_dim_; ++d) {
          change += static_cast<double>(gradients_[sample][r * v_dim_ + d]) *
                    static_cast<double>(e_[r * v_dim_ + d]);
        }
        if (std::isfinite(change)) out.log_p_change[sample][r] = change;
      }
    }
  }

  const LayerAttention& attention_;
  const StoredLayer& stored_;
  const StoreRequest& request_;
  uint32_t head_;
  std::span<const uint64_t> rows_;
  uint64_t keys_;
  uint32_t dim_, v_dim_;
  uint64_t k_row_, v_row_, k_at_, v_at_;
  bool is_changed_ = false, is_plain_ = false;
  std::vector<uint8_t> defined_;
  std::vector<float> queries_, scaled_, rounded_, moved_, scores_, p_, change_, weights_, changed_;
  std::vector<float> o_, e_, of_keys_, moves_, held_p_, held_change_;
  std::vector<uint32_t> held_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::vector<uint32_t>> largest_;
};

constexpr uint32_t kBlockValues = 32;

// Returns true if the query at `position` sees the token in full precision.
bool SeesInFull(const StoreRequest& request, quant::Tail tail, uint64_t position, uint64_t token) {
  return token < request.keep_first || token + request.keep_last > position ||
         token >= quant::CountStored(tail, position + 1);
}

// Returns how many tokens of K or V its last query sees in full precision.
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
  if (type.whole != nullptr) {
    stored.bytes = bytes;
    return stored;
  }
  const uint64_t full = FullTokens(request, type.GetTail(side.is_key), side.tokens);
  if (full == side.tokens) stored.noise = 0;  // the type stores no token in fewer bits
  const double share = static_cast<double>(full) / static_cast<double>(side.tokens);
  stored.bytes = (1 - share) * bytes + share * 2 * static_cast<double>(side.values.size());
  return stored;
}

void Append(const PairRows& from, PairRows& to) {
  const auto append = [](const std::vector<double>& more, std::vector<double>& all) {
    all.insert(all.end(), more.begin(), more.end());
  };
  for (const auto values :
       {&PairRows::kl, &PairRows::moved, &PairRows::top8, &PairRows::top64, &PairRows::error2,
        &PairRows::norm2, &PairRows::changed2, &PairRows::dot}) {
    append(from.*values, to.*values);
  }
  to.log_p_change.resize(from.log_p_change.size());
  for (size_t s = 0; s < from.log_p_change.size(); ++s)
    append(from.log_p_change[s], to.log_p_change[s]);
}

// Returns [pair][query head] from the results of `measure` for each tile of each head.
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
  if (dim % kBlockValues != 0) return;  // no engine multiplies heads of such a size
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
