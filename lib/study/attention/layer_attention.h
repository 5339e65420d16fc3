// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/select.h"
#include "lib/study/attention/probabilities.h"
#include "lib/study/dense/score.h"

// Computes attention while a cache shrinks, for policies and replays, which base decisions on it.
// Scores and weights are floats from the kernels of lib/study/dense/score.h, as engines compute
// them on keys in their stored type; only sums over rows are in double. Measurements of what a
// decision costs are in double (lib/study/attention/probabilities.h). The two are not merged,
// because one rounding more or less would change decisions.
namespace kv {

// One kv head's keys and values as floats, [token][dim].
struct HeadFloats {
  std::vector<float> k, v;
};

// One layer of a replay: the snapshot's keys and values and the trace's rows. Row r is the query at
// position first_row() + r, and token j of the snapshot is at position j. Every function is const
// and may be called from any thread. Trace, rows and layer must outlive the object.
class LayerAttention {
 public:
  LayerAttention(const AttentionTrace& trace, const TraceLayer& rows, const LayerKv& kv);

  uint32_t layer() const { return kv_.index; }
  uint32_t query_heads() const { return trace_.query_heads; }
  uint32_t kv_heads() const { return kv_.k.heads; }
  uint32_t group() const { return query_heads() / kv_heads(); }
  uint32_t head_dim() const { return kv_.k.head_dim; }
  uint64_t first_row() const { return trace_.q_start; }
  uint64_t end_row() const { return trace_.end_position(); }  // one past the last row's position
  bool has_queries() const { return rows_.queries.has_value(); }
  float scale() const { return scale_; }
  const AttentionRule& rule() const { return rule_; }
  const AttentionTrace& trace() const { return trace_; }
  const TraceLayer& rows() const { return rows_; }
  const LayerKv& kv() const { return kv_; }

  KeyType key_type() const { return key_type_; }
  size_t key_bytes() const { return head_dim() * (key_type_ == KeyType::kF32 ? 4 : 2); }
  // Writes the keys of one kv head at positions [begin, begin + count), packed, count x key_bytes()
  // bytes. Keys of block-quantised types are converted to float.
  void GatherKeys(uint32_t kv_head, uint64_t begin, uint64_t count, std::byte* out) const;

  // Returns the first `tokens` tokens of a kv head: keys if the trace has queries, values if the
  // layer has them.
  HeadFloats WidenHead(uint32_t kv_head, uint64_t tokens) const;

  // Returns true if a softcap or a window changes logits.
  bool masks() const { return rule_.softcap != 0 || rule_.window != 0; }
  // Applies softcap and window to the logits of the query at `position`. The key positions ascend,
  // and none comes after the query's.
  void Mask(uint64_t position, std::span<const uint32_t> key_positions, float* logits) const;

 private:
  const AttentionTrace& trace_;
  const TraceLayer& rows_;
  const LayerKv& kv_;
  AttentionRule rule_;
  float scale_;
  KeyType key_type_;
};

// The keys that one kv head still holds, in their stored type, kept as an engine keeps them: new
// keys are appended at the end, plans compact the cache. Holds only positions if the trace has
// probabilities instead of queries or if `with_keys` is false.
class KeptKeys {
 public:
  KeptKeys(const LayerAttention& attention, uint32_t kv_head, bool with_keys = true)
      : attention_(&attention),
        kv_head_(kv_head),
        with_keys_(with_keys && attention.has_queries()) {}

  // Appends the keys at positions up to `end` that were not appended before.
  void AppendUpTo(uint64_t end);
  // Drops all keys except those in `kept`: indices into the cache, not positions.
  void Compact(const KeepPlan& kept);
  uint64_t size() const { return positions_.size(); }
  std::span<const uint32_t> positions() const { return positions_; }
  KeyRows rows() const;

 private:
  const LayerAttention* attention_;
  uint32_t kv_head_;
  bool with_keys_;
  uint32_t next_ = 0;
  std::vector<uint32_t> positions_;
  std::vector<std::byte> keys_;
};

// Buffers of one thread.
struct RowScratch {
  std::vector<float> queries, logits, tile;
};

// Writes the logits of the query at `position` over the kept keys that it sees (those at positions
// up to its own) and returns their number. If the trace has probabilities p, a logit is ln p, so
// that weights relative to any subset of the keys are right.
size_t RowLogits(const LayerAttention& attention, uint32_t head, uint64_t position,
                 const KeptKeys& keys, RowScratch& scratch, float* out);

// Adds row_weights[r] * (weight of kept key j in row r) to sums[j], over the rows at positions
// [begin, begin + row_weights.size()), whose own keys must be the last of the cache. `sums` has one
// value per kept key. Softmax weights are normalised over the kept keys that a row sees.
void AddColumnSums(const LayerAttention& attention, uint32_t head, uint64_t begin,
                   std::span<const float> row_weights, WeightRule rule, const KeptKeys& keys,
                   RowScratch& scratch, double* sums);

}  // namespace kv
