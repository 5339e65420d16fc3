// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replays rules: caches of a layer shrink as plans say, rules share sums of attention weights, and
// all rules pass through the rows of a layer together.
#include "lib/study/eviction/rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::eviction {
namespace {

// Up to this many worst tokens are searched one by one instead of by a partial sort.
constexpr size_t kFewDropped = 4;

// Compares tokens: true if a is kept rather than b.
struct Stays {
  std::span<const double> scores;
  bool operator()(uint32_t a, uint32_t b) const {
    const double x = scores[a], y = scores[b];
    if (std::isnan(x) || std::isnan(y)) {
      if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
      return a < b;
    }
    return x != y ? x > y : a < b;
  }
};

// Returns all of `count` tokens except the `drop` worst.
KeepPlan WithoutWorst(size_t count, size_t drop, const Stays& stays) {
  std::vector<uint32_t> worst;
  while (worst.size() < drop) {
    std::optional<uint32_t> found;
    for (uint32_t i = 0; i < count; ++i) {
      if (found && !stays(*found, i)) continue;
      if (std::find(worst.begin(), worst.end(), i) == worst.end()) found = i;
    }
    worst.push_back(*found);
  }
  std::sort(worst.begin(), worst.end());
  KeepPlan plan;
  uint32_t next = 0;
  for (const uint32_t gone : worst) {
    Append(plan, {next, gone - next});
    next = gone + 1;
  }
  Append(plan, {next, static_cast<uint32_t>(count) - next});
  return plan;
}

constexpr size_t kSumBlock = 64;                     // weights summed in float before double
constexpr uint64_t kTileBytes = uint64_t{64} << 20;  // a tile's logits need at most so much memory
// Keys that fit a core's cache are multiplied row by row, which gives the same bits on every
// machine; longer ones go through the BLAS, which is several times as fast.
constexpr uint64_t kKeysInCache = uint64_t{1} << 18;

constexpr size_t kMostSums = 4;  // cached: one per kind of rule and first eviction

HeadSums SumGroups(const LayerCaches& caches, std::vector<std::vector<double>> of_query_head) {
  const uint32_t group = caches.attention.group();
  HeadSums sums(caches.attention.kv_heads());
  for (uint32_t head = 0; head < of_query_head.size(); ++head) {
    std::vector<double>& to = sums[head / group];
    if (head % group == 0) {
      to = std::move(of_query_head[head]);
    } else {
      for (size_t j = 0; j < to.size(); ++j) to[j] += of_query_head[head][j];
    }
  }
  return sums;
}

// Sums whole tiles at once: before anything is evicted, and in long stretches without eviction.
HeadSums SumTiles(const LayerCaches& caches, std::span<const KeptKeys> keys, uint64_t begin,
                  std::span<const float> row_weights, WeightRule rule) {
  const LayerAttention& attention = caches.attention;
  std::vector<std::vector<double>> of_query_head(attention.query_heads());
  caches.pool->ParallelFor(of_query_head.size(), [&](uint64_t head) {
    std::vector<double>& sums = of_query_head[head];
    const KeptKeys& seen = keys[head / attention.group()];
    sums.resize(std::max(caches.size(), seen.size()));
    RowScratch scratch;
    AddColumnSums(attention, static_cast<uint32_t>(head), begin, row_weights, rule, seen, scratch,
                  sums.data());
    sums.resize(caches.size());
  });
  return SumGroups(caches, std::move(of_query_head));
}

// Returns a weight per row on a stride: the sum of the weights of all rows since the previous one.
std::vector<std::pair<uint64_t, double>> MakeStridedWeights(const LogitRows& logits, uint64_t begin,
                                                            std::span<const float> row_weights) {
  std::vector<std::pair<uint64_t, double>> rows;
  for (uint64_t i = 0; i < row_weights.size(); ++i) {
    const uint64_t row = logits.From(begin + i);
    if (rows.empty() || rows.back().first != row) rows.emplace_back(row, 0);
    rows.back().second += static_cast<double>(row_weights[i]);
  }
  KV_ASSERT(rows.empty() || rows.back().first < begin + row_weights.size());
  return rows;
}

// Sums the rows on a stride before anything is evicted.
HeadSums SumWholeRows(const LayerCaches& caches, uint64_t begin, std::span<const float> row_weights,
                      WeightRule rule) {
  const LayerAttention& attention = caches.attention;
  const auto rows = MakeStridedWeights(caches.shared->logits(), begin, row_weights);
  std::vector<std::vector<double>> of_query_head(attention.query_heads());
  caches.pool->ParallelFor(of_query_head.size(), [&](uint64_t head) {
    std::vector<double>& sums = of_query_head[head];
    sums.resize(caches.size());
    RowScratch scratch;
    std::vector<float> weights(caches.size());
    for (const auto& [row, factor] : rows) {
      const size_t seen =
          RowLogits(attention, static_cast<uint32_t>(head), row,
                    caches.shared->whole()[head / attention.group()], scratch, weights.data());
      WeighRow(weights.data(), seen, rule);
      for (size_t j = 0; j < seen; ++j) sums[j] += factor * static_cast<double>(weights[j]);
    }
  });
  return SumGroups(caches, std::move(of_query_head));
}

// Sums row by row, from the logits that all rules share.
HeadSums SumRows(const LayerCaches& caches, uint64_t begin, std::span<const float> row_weights,
                 WeightRule rule) {
  const uint64_t end = begin + row_weights.size();
  const auto rows = MakeStridedWeights(caches.shared->logits(), begin, row_weights);
  std::vector<std::vector<double>> of_query_head(caches.attention.query_heads());
  caches.pool->ParallelFor(of_query_head.size(), [&](uint64_t head) {
    std::vector<double>& sums = of_query_head[head];
    sums.resize(caches.size());
    const KeptKeys& held = caches.of_head[head / caches.attention.group()];
    std::vector<float> weights, scratch;
    for (const auto& [row, factor] : rows) {
      const auto seen = held.positions().first(held.size() - (end - 1 - row));
      caches.shared->logits().Weigh(static_cast<uint32_t>(head), row, seen, rule, weights, scratch);
      for (size_t j = 0; j < seen.size(); ++j) sums[j] += factor * static_cast<double>(weights[j]);
    }
  });
  return SumGroups(caches, std::move(of_query_head));
}

}  // namespace

KeepPlan TopTokens(std::span<const double> scores, uint64_t keep, uint64_t last) {
  const uint64_t n = scores.size();
  keep = std::min(keep, n);
  last = std::min(last, keep);
  const Stays stays{scores};
  KeepPlan plan;
  if (n - keep <= kFewDropped) {
    plan = WithoutWorst(n - last, n - keep, stays);
  } else {
    std::vector<uint32_t> order(n - last);
    std::iota(order.begin(), order.end(), 0);
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(keep - last);
    std::nth_element(order.begin(), middle, order.end(), stays);
    order.resize(keep - last);
    std::sort(order.begin(), order.end());
    plan = MakeKeepPlan(order);
  }
  Append(plan, {static_cast<uint32_t>(n - last), static_cast<uint32_t>(last)});
  return plan;
}

void CompactScores(const KeepPlan& plan, std::vector<double>& scores) {
  size_t to = 0;
  for (const KeepRange& range : plan) {
    if (range.begin != to) {
      std::copy_n(scores.begin() + range.begin, range.count,
                  scores.begin() + static_cast<std::ptrdiff_t>(to));
    }
    to += range.count;
  }
  scores.resize(to);
}

LogitRows::LogitRows(const LayerAttention& attention, std::span<const KeptKeys> whole,
                     ThreadPool& pool, uint64_t stride)
    : attention_(attention),
      whole_(whole),
      pool_(pool),
      stride_(stride),
      of_head_(attention.query_heads()) {
  const uint64_t row_bytes = attention.query_heads() * attention.end_row() * sizeof(float);
  tile_rows_ = std::clamp<uint64_t>(kTileBytes / std::max<uint64_t>(1, row_bytes), 1, kTileRows);
}

uint64_t LogitRows::LoadTileAt(uint64_t position) {
  KV_ASSERT(attention_.first_row() <= position && position < attention_.end_row());
  if (Holds(position)) return end_;
  // A tile ends after its last row, so that the rows up to the next one are seen with that.
  const uint64_t row = From(position), positions = tile_rows_ * stride_;
  begin_ = row - (row - From(attention_.first_row())) % positions;
  end_ = row_floats_ = std::min(begin_ + positions - (stride_ - 1), attention_.end_row());
  pool_.ParallelFor(of_head_.size(), [&](uint64_t head) { LoadHead(static_cast<uint32_t>(head)); });
  return end_;
}

void LogitRows::LoadHead(uint32_t head) {
  std::vector<float>& out = of_head_[head];
  const uint64_t rows = CeilDiv(end_ - begin_, stride_), dim = attention_.head_dim();
  out.resize(rows * row_floats_);
  const KeptKeys& keys = whole_[head / attention_.group()];
  const auto positions = keys.positions();
  RowScratch scratch;
  if (!attention_.has_queries() || row_floats_ * attention_.key_bytes() <= kKeysInCache) {
    for (uint64_t i = 0; i < rows; ++i) {
      RowLogits(attention_, head, begin_ + i * stride_, keys, scratch, &out[i * row_floats_]);
    }
    return;
  }
  scratch.queries.resize(rows * dim);
  for (uint64_t i = 0; i < rows; ++i) {
    ReadQueries(attention_.rows(), head, begin_ + i * stride_ - attention_.first_row(), 1,
                &scratch.queries[i * dim]);
  }
  scratch.tile.resize(TileScratchFloats(dim));
  // The last row sees all keys of the tile, and on a stride the others see fewer than is computed.
  const uint64_t visible = end_ - (rows - 1);
  TileLogits({scratch.queries.data(), dim, rows, keys.rows(), visible, attention_.scale()},
             out.data(), row_floats_, scratch.tile.data());
  for (uint64_t i = 0; i < rows; ++i) {
    const uint64_t row = begin_ + i * stride_;
    attention_.Mask(row, positions.first(row + 1), &out[i * row_floats_]);
  }
}

const float* LogitRows::Row(uint32_t head, uint64_t position) const {
  KV_ASSERT(Holds(position));
  return &of_head_[head][(position - begin_) / stride_ * row_floats_];
}

void LogitRows::Pick(uint32_t head, uint64_t position, std::span<const uint32_t> positions,
                     std::vector<float>& logits) const {
  const float* row = Row(head, position);
  logits.resize(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) logits[i] = row[positions[i]];
}

void LogitRows::Weigh(uint32_t head, uint64_t position, std::span<const uint32_t> positions,
                      WeightRule rule, std::vector<float>& weights,
                      std::vector<float>& scratch) const {
  Pick(head, position, positions, weights);
  if (rule == WeightRule::kSoftmax) {
    Softmax(weights, scratch);
  } else {
    WeighRow(weights.data(), weights.size(), rule);
  }
}

SoftmaxScale Softmax(std::span<float> row, std::vector<float>& scratch) {
  SoftmaxScale scale{RowMaximum(row.data(), row.size()), 0};
  if (scale.maximum == -INFINITY) {
    std::fill(row.begin(), row.end(), 0.0f);
    return scale;
  }
  ExpRow(row.data(), row.size(), scale.maximum);
  scratch.resize(CeilDiv(row.size(), kSumBlock));
  const double total = BlockSums(row.data(), row.size(), kSumBlock, scratch.data());
  scale.factor = static_cast<float>(1 / total);
  for (float& weight : row) weight *= scale.factor;
  if (!std::isfinite(total)) scale.factor = 0;
  return scale;
}

void WeighAs(const SoftmaxScale& scale, std::span<float> part) {
  ExpRow(part.data(), part.size(), scale.maximum);
  for (float& weight : part) weight *= scale.factor;
}

SharedRows::SharedRows(const LayerAttention& attention, ThreadPool& pool, uint64_t stride)
    : whole_(WholeCache(attention)), logits_(attention, whole_, pool, stride) {}

std::vector<KeptKeys> SharedRows::WholeCache(const LayerAttention& attention) {
  std::vector<KeptKeys> whole;
  for (uint32_t h = 0; h < attention.kv_heads(); ++h) {
    whole.emplace_back(attention, h);
    whole.back().AppendUpTo(attention.end_row());
  }
  return whole;
}

HeadSums SharedRows::FindSums(SummedRows rows, const std::function<HeadSums()>& sum) {
  // The lock is held while summing: another thread that asks for the same rows would only repeat
  // the work.
  const std::lock_guard lock(mutex_);
  for (const auto& [summed, sums] : sums_) {
    if (summed == rows) return sums;
  }
  HeadSums sums = sum();
  if (sums_.size() < kMostSums) {
    sums_.emplace_back(std::move(rows), sums);
  } else {
    sums_[oldest_] = {std::move(rows), sums};
    oldest_ = (oldest_ + 1) % kMostSums;
  }
  return sums;
}

HeadSums ColumnSums(LayerCaches& caches, uint64_t begin, std::span<const float> row_weights,
                    WeightRule rule) {
  if (caches.shared == nullptr) return SumTiles(caches, caches.of_head, begin, row_weights, rule);
  if (caches.size() != begin + row_weights.size()) {
    return SumRows(caches, begin, row_weights, rule);
  }
  return caches.shared->FindSums({begin, {row_weights.begin(), row_weights.end()}, rule}, [&] {
    if (caches.shared->logits().stride() > 1) return SumWholeRows(caches, begin, row_weights, rule);
    return SumTiles(caches, caches.shared->whole(), begin, row_weights, rule);
  });
}

Scores RowWeights(const LayerCaches& caches, uint32_t head, uint64_t position) {
  const uint32_t kv_head = head / caches.attention.group();
  const KeptKeys& held = caches.of_head[kv_head];
  std::vector<float> row, scratch;
  if (caches.shared != nullptr && caches.shared->logits().Holds(position)) {
    const auto positions = held.positions();
    const auto seen = std::upper_bound(positions.begin(), positions.end(), position);
    caches.shared->logits().Weigh(head, position, {positions.begin(), seen}, WeightRule::kSoftmax,
                                  row, scratch);
  } else {
    // The rows of the prompt are observed before anything is evicted.
    KV_ASSERT(caches.shared == nullptr || held.size() == held.positions().back() + 1);
    const KeptKeys& keys = caches.shared == nullptr ? held : caches.shared->whole()[kv_head];
    RowScratch buffers;
    row.resize(keys.size());
    row.resize(RowLogits(caches.attention, head, position, keys, buffers, row.data()));
    WeighRow(row.data(), row.size(), WeightRule::kSoftmax);
  }
  Scores weights(row.begin(), row.end());
  weights.resize(held.size());
  return weights;
}

std::vector<float> FloatKeys(const LayerAttention& attention, std::span<const uint32_t> positions,
                             uint32_t kv_head) {
  const size_t dim = attention.head_dim();
  std::vector<float> out(positions.size() * dim);
  std::vector<std::byte> row(attention.key_bytes());
  const KeyRows key = {row.data(), attention.key_type(), row.size(), 1, dim};
  for (size_t j = 0; j < positions.size(); ++j) {
    attention.GatherKeys(kv_head, positions[j], 1, row.data());
    WidenKeys(key, 0, 1, out.data() + j * dim);
  }
  return out;
}

double Norm(const float* row, size_t dim) {
  double sum = 0;
  for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return std::sqrt(sum);
}

namespace {

// Returns the caches of a rule that has seen no rows yet.
LayerCaches EmptyCaches(const LayerAttention& attention, SharedRows* shared, ThreadPool& pool) {
  LayerCaches caches{attention, &pool, shared, {}};
  for (uint32_t h = 0; h < attention.kv_heads(); ++h) {
    caches.of_head.emplace_back(attention, h, shared == nullptr);
  }
  return caches;
}

// The state of one rule while it passes through the rows of a layer.
class Walk {
 public:
  Walk(const PlanJob& job, const LayerAttention& attention, uint64_t prompt, SharedRows* shared,
       ThreadPool& pool)
      : evictions_(job.schedule->evictions),
        prompt_(prompt),
        caches_(EmptyCaches(attention, shared, pool)) {
    plan_.layer = attention.layer();
    if (evictions_.empty()) return;
    rule_ = job.policy->make({*job.options, *job.schedule, caches_});
    plan_.units = rule_->units(caches_);
  }

  // Applies all evictions before the row at `end`.
  void AdvanceTo(uint64_t end, ThreadPool& pool) {
    caches_.pool = &pool;
    for (; done_ < evictions_.size() && evictions_[done_].token < end; ++done_) {
      Evict(evictions_[done_]);
    }
    if (done_ < evictions_.size()) Append(end);
  }

  LayerPlan Take() { return std::move(plan_); }

 private:
  void Append(uint64_t end) {
    if (end <= next_) return;
    for (KeptKeys& keys : caches_.of_head) keys.AppendUpTo(end);
    const uint64_t first = std::max(next_, caches_.attention.first_row());
    const uint64_t from = rule_->wants_prefill() ? first : std::max(first, prompt_);
    if (from < end) rule_->Observe(caches_, from, end);
    next_ = end;
  }

  void Evict(const Eviction& eviction) {
    Append(eviction.token + 1);
    KV_ASSERT(eviction.length_before == caches_.size());
    const std::vector<KeepPlan> chosen = rule_->Choose(caches_, eviction.token, eviction.kept);
    KV_ASSERT(chosen.size() == plan_.units);
    for (uint32_t unit = 0; unit < plan_.units; ++unit) {
      KV_ASSERT(KeptTokens(chosen[unit]) == eviction.kept);
      NoteDropped(unit, chosen[unit], eviction.token);
    }
    for (uint32_t h = 0; h < caches_.of_head.size(); ++h) {
      caches_.of_head[h].Compact(chosen[plan_.units == 1 ? 0 : h]);
    }
    plan_.events.push_back(eviction);
  }

  void NoteDropped(uint32_t unit, const KeepPlan& chosen, uint64_t token) {
    const auto positions = caches_.of_head[unit].positions();
    size_t next = 0;
    const auto drop_up_to = [&](size_t end) {
      for (; next < end; ++next) plan_.Drop(unit, positions[next], token);
    };
    for (const KeepRange& range : chosen) {
      drop_up_to(range.begin);
      next = range.end();
    }
    drop_up_to(positions.size());
  }

  std::span<const Eviction> evictions_;
  uint64_t prompt_;
  LayerCaches caches_;
  std::unique_ptr<Rule> rule_;
  LayerPlan plan_;
  size_t done_ = 0;
  uint64_t next_ = 0;  // first position that is not in the caches yet
};

}  // namespace

std::vector<LayerPlan> PlanLayer(const LayerAttention& attention, uint64_t prompt,
                                 std::span<const PlanJob> jobs, ThreadPool& pool, uint64_t stride) {
  std::vector<LayerPlan> plans(jobs.size());
  std::unique_ptr<SharedRows> shared;
  std::vector<std::pair<size_t, Walk>> together;
  uint64_t next = UINT64_MAX, end = 0;  // rows whose logits are computed one at a time
  for (size_t i = 0; i < jobs.size(); ++i) {
    const PlanJob& job = jobs[i];
    if (!job.options->on_budget) {
      Walk alone(job, attention, prompt, nullptr, pool);
      alone.AdvanceTo(attention.end_row(), pool);
      plans[i] = alone.Take();
      continue;
    }
    if (shared == nullptr) shared = std::make_unique<SharedRows>(attention, pool, stride);
    together.emplace_back(i, Walk(job, attention, prompt, shared.get(), pool));
    if (!job.policy->needs_rows || job.schedule->evictions.empty()) continue;
    next = std::min(next, job.schedule->evictions.front().token);
    end = std::max(end, job.schedule->evictions.back().token + 1);
  }
  // With many rules each runs on one thread, side by side; with few, they share the threads head by
  // head. All rules also do so in the first tile, where sums over the whole prompt are made that
  // later rules reuse.
  ThreadPool inline_pool(1);
  const bool many = together.size() >= static_cast<size_t>(pool.threads());
  const auto advance = [&](uint64_t to, bool side_by_side) {
    if (!side_by_side) {
      for (auto& [job, walk] : together) walk.AdvanceTo(to, pool);
      return;
    }
    pool.ParallelFor(together.size(),
                     [&](uint64_t i) { together[i].second.AdvanceTo(to, inline_pool); });
  };
  for (bool first = true; next < end; first = false) {
    next = shared->logits().LoadTileAt(next);
    advance(next, many && !first);
  }
  advance(attention.end_row(), many);
  for (auto& [job, walk] : together) plans[job] = walk.Take();
  return plans;
}

}  // namespace kv::eviction
