// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/keep_plan.h"
#include "lib/study/dense/score.h"

namespace kv {

// One layer as a replay sees it: the snapshot's keys and values and the trace's rows. Row r is the
// query at position first_row() + r, token j of the snapshot is position j. Everything is const and
// may be called from any thread.
class LayerAttention {
 public:
  LayerAttention(const AttentionTrace& trace, const TraceLayer& rows, const LayerKv& kv);

  uint32_t layer() const { return kv_.index; }
  uint32_t query_heads() const { return trace_.query_heads; }
  uint32_t kv_heads() const { return kv_.k.heads; }
  uint32_t group() const { return query_heads() / kv_heads(); }
  uint32_t head_dim() const { return kv_.k.head_dim; }
  uint64_t first_row() const { return trace_.q_start; }
  uint64_t end_row() const { return trace_.end_position(); }  // positions; one past the last
  bool has_queries() const { return rows_.queries.has_value(); }
  float scale() const { return scale_; }
  const AttentionTrace& trace() const { return trace_; }
  const TraceLayer& rows() const { return rows_; }
  const LayerKv& kv() const { return kv_; }

  KeyType key_type() const { return key_type_; }
  size_t key_bytes() const { return head_dim() * (key_type_ == KeyType::kF32 ? 4 : 2); }
  // Keys of one kv head at positions [begin, begin + count), packed; block types become float.
  void GatherKeys(uint32_t kv_head, uint64_t begin, uint64_t count, std::byte* out) const;

  // Whether softcap or window change logits.
  bool masks() const { return trace_.softcap != 0 || trace_.window != 0; }
  // What softcap and window do to logits of the query at `position`; keys at ascending positions.
  void Mask(uint64_t position, std::span<const uint32_t> key_positions, float* logits) const;

 private:
  const AttentionTrace& trace_;
  const TraceLayer& rows_;
  const LayerKv& kv_;
  float scale_;
  KeyType key_type_;
};

// The keys that one kv head still holds, as an engine keeps them: appended at the end, compacted by
// plans, in their stored type. With a trace of probabilities, and where nobody looks at keys, only
// the positions are kept.
class KeptKeys {
 public:
  KeptKeys(const LayerAttention& attention, uint32_t kv_head, bool with_keys = true)
      : attention_(&attention),
        kv_head_(kv_head),
        with_keys_(with_keys && attention.has_queries()) {}

  void AppendUpTo(uint64_t end);       // positions [next, end) join the cache
  void Compact(const KeepPlan& kept);  // indices into the cache
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

// Logits of one query row over the kept keys it sees: those at positions up to its own. Returns
// their number. With probabilities a logit is ln p, so that weights relative to any subset of keys
// come out right.
size_t RowLogits(const LayerAttention& attention, uint32_t head, uint64_t position,
                 const KeptKeys& keys, RowScratch& scratch, float* out);

// sums[j] += row_weights[r] * weight of kept key j for the rows at [begin, begin +
// row_weights.size()), which must be the last keys of the cache. `sums` has one value per kept key.
// Softmax weights are normalised over the kept keys that a row sees.
void AddColumnSums(const LayerAttention& attention, uint32_t head, uint64_t begin,
                   std::span<const float> row_weights, WeightRule rule, const KeptKeys& keys,
                   RowScratch& scratch, double* sums);

}  // namespace kv
