// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/attention_trace.h"

// One head's attention as every measurement computes it: float products through the BLAS, scores
// and softmax in double and in index order, float outputs through the BLAS. The arithmetic of
// engines, which decides what they keep, is in lib/study/attention/layer_attention.h and under
// lib/engines.
namespace kv {

// A view of a row-major float matrix.
struct FloatMatrix {
  const float* data = nullptr;
  uint64_t rows = 0, columns = 0;
  uint64_t stride = 0;  // floats from row to row

  const float* row(uint64_t i) const { return data + i * stride; }
  bool empty() const { return data == nullptr || rows == 0; }
};
inline FloatMatrix MakeMatrix(std::span<const float> values, uint64_t rows, uint64_t columns) {
  return {values.data(), rows, columns, columns};
}

// Bounds a score smoothly: cap * tanh(score / cap); a cap of 0 leaves it as it is.
template <typename Float>
Float Softcapped(Float score, Float cap) {
  return cap == 0 ? score : cap * std::tanh(score / cap);
}

// The rule by which scores become probabilities: softmax(softcap(scale * q.k) + bias) over the
// visible keys.
struct AttentionRule {
  double scale = 0;     // 0: 1 / sqrt(columns of K)
  double softcap = 0;   // 0: no softcap
  uint64_t window = 0;  // 0: no window; otherwise a query sees this many keys, itself included

  double ScaleFor(uint64_t head_dim) const {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  // Returns true if the query at one position sees the key at another.
  bool Sees(int64_t query, int64_t key) const {
    return key <= query && (window == 0 || static_cast<uint64_t>(query - key) < window);
  }
  // Returns the first position that the query at `position` sees.
  uint64_t FirstSeen(uint64_t position) const {
    return window != 0 && position >= window ? position + 1 - window : 0;
  }
};
// Returns the rule that a layer of the traced model follows.
inline AttentionRule MakeRule(const AttentionTrace& trace, const TraceLayer& layer) {
  return {layer.rule.scale.value_or(trace.scale), layer.rule.softcap.value_or(trace.softcap),
          layer.rule.window.value_or(trace.window)};
}

// Returns how many keys a layer's query at `position` sees; an engine with sliding windows needs to
// hold no more. Layers without rows follow the trace's common window.
uint64_t TokensSeen(const AttentionTrace& trace, uint32_t layer, uint64_t position);
// Returns a remark if the cache was stored in blocks before, because no figure counts that loss;
// otherwise "".
std::string RemarkOnBlocks(const Snapshot& snapshot);
// Returns a remark that names the layers which see less than `end` tokens, as tokens outside their
// windows are not counted; "" if there are none.
std::string RemarkOnWindows(const AttentionTrace& trace, uint64_t end);

// The cache as one head sees it. Without V (empty) no outputs are computed.
struct HeadCache {
  FloatMatrix k, v;
  // positions of the keys, for the causal order; empty: key j is at position j
  std::span<const int64_t> positions;
  std::span<const float> bias;  // added to the score of each key; empty: nothing is added
};

// Query rows; row i sees the keys at positions <= positions[i]. Empty positions: all keys.
struct HeadQueries {
  FloatMatrix q;
  std::span<const int64_t> positions;
};

// Writes the dot products of `count` rows of `queries`, from row `begin` on, with all keys: count x
// keys floats, unscaled.
void DotProducts(const FloatMatrix& queries, uint64_t begin, uint64_t count,
                 const FloatMatrix& keys, std::vector<float>& out);

// Turns scores into probabilities in place: exponentials relative to the largest score, divided by
// their sum. A score of -infinity becomes 0. A row with a NaN or with nothing but -infinity becomes
// all NaN.
void Softmax(std::span<double> scores);

// Writes the probabilities of `count` rows of `queries`, from row `begin` on: count x keys doubles,
// 0 for hidden keys. A row that sees no key is all zero; one with an infinite or NaN score is all
// NaN.
void AttentionProbabilities(const HeadQueries& queries, const HeadCache& cache,
                            const AttentionRule& rule, uint64_t begin, uint64_t count,
                            std::span<double> out);

// Rounds probabilities to float.
void Narrow(std::span<const double> from, std::vector<float>& to);
// Writes the outputs of `rows` rows of probabilities, rows x keys: P x V, rows x columns of V.
void Outputs(std::span<const float> probabilities, uint64_t rows, const FloatMatrix& v,
             std::vector<float>& out);

}  // namespace kv
