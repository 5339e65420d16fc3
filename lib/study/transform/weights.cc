// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Carries the gradients at attention outputs back to keys and values: for one query, dLoss/dv_j is
// p_j g, and dLoss/dk_j is scale p_j (g . (v_j - o)) q.
#include "lib/study/transform/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/attention/probabilities.h"
#include "lib/study/dense/gemm.h"
#include "lib/study/transform/cache_rows.h"

namespace kv::transform {
namespace {

constexpr uint64_t kTileRows = 64;
constexpr double kLeastShare = 1e-6;   // smallest weight / mean weight
constexpr uint64_t kMostSamples = 64;  // each takes as much memory as the cache in f32

// Gradients of one kv head, [sample][token][dim], of the tokens of a range.
struct HeadGradients {
  std::vector<float> k, v;
};

class HeadPass {
 public:
  HeadPass(const LayerAttention& attention, uint32_t kv_head, TokenRange range)
      : attention_(attention),
        rows_(*attention.trace().gradients),
        tokens_(attention.kv().k.tokens()),
        dim_(attention.kv().k.head_dim),
        v_dim_(attention.kv().v->head_dim),
        head_(attention.WidenHead(kv_head, tokens_)),
        keys_(MakeMatrix(head_.k, tokens_, dim_)),
        values_(MakeMatrix(head_.v, tokens_, v_dim_)),
        range_(range),
        count_(range.end - range.begin),
        samples_(std::min(rows_.recorded(), kMostSamples)) {
    made_.k.resize(samples_ * count_ * dim_);
    made_.v.resize(samples_ * count_ * v_dim_);
  }

  // Adds the rows of a query head that shares these keys.
  void Add(uint32_t head) {
    for (uint64_t begin = rows_.begin; begin < rows_.end(); begin += kTileRows)
      AddTile(head, begin, std::min(kTileRows, rows_.end() - begin));
  }
  HeadGradients Finish() { return std::move(made_); }

 private:
  void AddTile(uint32_t head, uint64_t begin, uint64_t rows) {
    queries_.resize(rows * dim_);
    ReadQueries(attention_.rows(), head, begin - attention_.first_row(), rows, queries_.data());
    std::vector<int64_t> positions(rows);
    std::iota(positions.begin(), positions.end(), static_cast<int64_t>(begin));
    std::vector<double> exact(rows * tokens_);
    AttentionProbabilities({MakeMatrix(queries_, rows, dim_), positions}, {keys_, values_, {}, {}},
                           attention_.rule(), 0, rows, exact);
    Narrow(exact, p_);
    Outputs(p_, rows, values_, outputs_);
    for (uint64_t sample = 0; sample < samples_; ++sample) AddSample(head, begin, rows, sample);
  }

  // The slope of a softcap is left out: it is at most 1, and differs from 1 only for large scores.
  void AddSample(uint32_t head, uint64_t begin, uint64_t rows, uint64_t sample) {
    gradients_.resize(rows * v_dim_);
    for (uint64_t r = 0; r < rows; ++r) {
      ReadGradient(attention_.trace(), attention_.rows(), sample, begin + r, head,
                   &gradients_[r * v_dim_]);
    }
    std::vector<float> products(rows * count_);  // g . v_j
    GemmNT(gradients_.data(), v_dim_, values_.row(range_.begin), values_.stride, products.data(),
           count_, rows, count_, v_dim_);
    of_values_.assign(count_ * rows, 0.0f);  // [token][row], as both products below need the values
    of_scores_.assign(count_ * rows, 0.0f);
    const auto scale = static_cast<float>(attention_.rule().ScaleFor(dim_));
    for (uint64_t r = 0; r < rows; ++r) {
      float of_output = 0;
      bool is_finite = true;
      for (uint64_t d = 0; d < v_dim_; ++d) {
        of_output += gradients_[r * v_dim_ + d] * outputs_[r * v_dim_ + d];
        is_finite = is_finite && std::isfinite(gradients_[r * v_dim_ + d]);
      }
      // One NaN would make the sums of all rows NaN, so such a row counts as one without gradient.
      if (!is_finite || !std::isfinite(of_output)) {
        std::fill_n(&gradients_[r * v_dim_], v_dim_, 0.0f);
        continue;
      }
      for (uint64_t j = 0; j < count_; ++j) {
        const float p = p_[r * tokens_ + range_.begin + j];
        of_values_[j * rows + r] = p;
        of_scores_[j * rows + r] = scale * p * (products[r * count_ + j] - of_output);
      }
    }
    GemmNN(of_values_.data(), rows, gradients_.data(), v_dim_, &made_.v[sample * count_ * v_dim_],
           v_dim_, count_, v_dim_, rows, true);
    GemmNN(of_scores_.data(), rows, queries_.data(), dim_, &made_.k[sample * count_ * dim_], dim_,
           count_, dim_, rows, true);
  }

  const LayerAttention& attention_;
  const GradientRows rows_;
  uint64_t tokens_, dim_, v_dim_;
  HeadFloats head_;
  FloatMatrix keys_, values_;  // of head_
  TokenRange range_;
  uint64_t count_, samples_;
  HeadGradients made_;
  std::vector<float> queries_, gradients_, p_, outputs_, of_values_, of_scores_;
};

// Adds the squares of all rows to sums by feature, each times `share`.
void AddSquares(const CacheRows& rows, double share, std::vector<double>& sums) {
  for (size_t i = 0; i < rows.values.size(); ++i) {
    const double value = rows.values[i];
    if (std::isfinite(value)) sums[i % rows.features] += share * value * value;
  }
}

void RequireGradients(const Snapshot& snapshot, const AttentionTrace& trace) {
  for (const LayerKv& layer : snapshot.layers) {
    const TraceLayer* rows = trace.Find(layer.index);
    // The errors of a transform are small and dense, so only gradients at the recorded state weigh
    // them.
    const bool has_recorded = trace.gradients && trace.gradients->recorded() > 0;
    if (has_recorded && rows != nullptr && rows->queries && rows->gradients) continue;
    throw Error(Finding::kTraceMismatch,
                "the trace has no queries and gradients at the recorded state of layer {}",
                layer.index)
        .File(trace.path)
        .Hint("python -m kvtool.capture MODEL --fisher 8 records them");
  }
}

// Returns the tokens before the decoded rows; all tokens if every row has gradients.
uint64_t CountCached(const Snapshot& snapshot, const AttentionTrace& trace, uint64_t exact) {
  const uint64_t tokens = snapshot.layers.front().k.tokens();
  const uint64_t before = std::min(trace.gradients->begin, tokens);
  return before > exact ? before : tokens;
}

// Gradients of one sample each, keys as they are stored.
struct RunGradients {
  std::vector<CacheRows> k, v;
};

RunGradients CollectGradients(const Snapshot& snapshot, const AttentionTrace& trace,
                              TokenRange range, ThreadPool& pool) {
  const LayerKv& first = snapshot.layers.front();
  const uint64_t layers = snapshot.layers.size(), heads = first.k.heads;
  const uint64_t samples = std::min(trace.gradients->recorded(), kMostSamples);
  const uint64_t count = range.end - range.begin;
  const auto empty = [&](const KvTensor& tensor) {
    const uint64_t features = layers * tensor.channels();
    return std::vector<CacheRows>(samples, {std::vector<float>(count * features), count, features});
  };
  RunGradients run{empty(first.k), empty(*first.v)};
  pool.ParallelFor(layers * heads, [&](uint64_t i) {
    const LayerKv& layer = snapshot.layers[i / heads];
    const auto head = static_cast<uint32_t>(i % heads);
    const LayerAttention attention(trace, *trace.Find(layer.index), layer);
    HeadPass pass(attention, head, range);
    for (uint32_t q = 0; q < attention.group(); ++q) pass.Add(head * attention.group() + q);
    const HeadGradients made = pass.Finish();
    for (const bool is_key : {true, false}) {
      const uint64_t dim = is_key ? layer.k.head_dim : layer.v->head_dim;
      for (uint64_t t = 0; t < samples * count; ++t) {
        CacheRows& rows = (is_key ? run.k : run.v)[t / count];
        std::copy_n(&(is_key ? made.k : made.v)[t * dim], dim,
                    &rows.values[t % count * rows.features + i * dim]);
      }
    }
  });
  return run;
}

}  // namespace

void LossWeights::Add(const Snapshot& snapshot, const AttentionTrace& trace, const ModelRope* rope,
                      uint64_t sinks, uint64_t window, ThreadPool& pool) {
  RequireRows(snapshot);
  RequireGradients(snapshot, trace);
  const TokenRange range = MiddleRange(CountCached(snapshot, trace, sinks + window), sinks, window);
  const LayerKv& first = snapshot.layers.front();
  const uint64_t layers = snapshot.layers.size(), count = range.end - range.begin;
  if (k_.empty()) {
    k_.resize(layers * first.k.channels());
    v_.resize(layers * first.v->channels());
  }
  if (count == 0 || k_.size() != layers * first.k.channels() ||
      v_.size() != layers * first.v->channels()) {
    throw Error(Finding::kUsage, count == 0 ? "no token is left to weigh"
                                            : "layers or heads differ from those of earlier runs");
  }
  RequireRope(snapshot, rope);
  RunGradients run = CollectGradients(snapshot, trace, range, pool);
  const double share = 1 / static_cast<double>(run.k.size() * trace.gradients->rows);
  for (CacheRows& rows : run.k) {
    Unrotate(snapshot, rope, range, rows);
    AddSquares(rows, share, k_);
  }
  for (const CacheRows& rows : run.v) AddSquares(rows, share, v_);
  ++runs_;
}

std::vector<float> LossWeights::Get(bool is_key) const {
  const std::vector<double>& sums = is_key ? k_ : v_;
  const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
  const double least = std::max(1e-15, kLeastShare * sum / static_cast<double>(sums.size()));
  std::vector<float> weights;
  for (const double weight : sums)
    weights.push_back(static_cast<float>(std::max(weight, least) / static_cast<double>(runs_)));
  return weights;
}

}  // namespace kv::transform
