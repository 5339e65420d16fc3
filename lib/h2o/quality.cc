// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/h2o/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/base/error.h"
#include "lib/snapshot/layout.h"

namespace kv::h2o {
namespace {

// Row sums of recorded probabilities may be off by what their storage type rounds away.
constexpr double kHalfSumTolerance = 1e-2, kFloatSumTolerance = 1e-4;

// Positions where some plan changes what is held: the rows between two of them see the same keys.
std::vector<uint64_t> Borders(std::span<const LayerPlan* const> plans, uint64_t prompt,
                              uint64_t end) {
  std::set<uint64_t> borders = {prompt, end};
  for (const LayerPlan* plan : plans) {
    for (const Eviction& event : plan->events) {
      const uint64_t next = event.token + 1;
      if (next > prompt && next < end) borders.insert(next);
    }
  }
  return {borders.begin(), borders.end()};
}

std::vector<uint8_t> Mask(const LayerPlan& plan, uint32_t unit, uint64_t begin, uint64_t end) {
  std::vector<uint8_t> mask(end, 0);
  for (const KeepRange& range : plan.HeldBefore(unit, begin)) {
    std::fill_n(mask.begin() + range.begin, range.count, uint8_t{1});
  }
  std::fill(mask.begin() + static_cast<std::ptrdiff_t>(begin), mask.end(), uint8_t{1});
  return mask;
}

// One kv head's keys and values as floats, [token][dim].
struct HeadFloats {
  std::vector<float> k, v;
};

HeadFloats WidenHead(const LayerAttention& attention, uint32_t kv_head, uint64_t tokens) {
  const auto widen = [&](const KvTensor& tensor) {
    KvTensor one = tensor;
    one.heads = 1;
    for (StridedPiece& piece : one.pieces) {
      piece.data += piece.head.Offset(kv_head);
      piece.head = {};
    }
    return GatherFloats(one, 0, tokens, Order::kTokenHeadDim);
  };
  HeadFloats floats;
  if (attention.has_queries()) floats.k = widen(attention.kv().k);
  if (attention.kv().v) floats.v = widen(*attention.kv().v);
  return floats;
}

// Rows [begin, end) of recorded probabilities over keys [0, end), normalised.
std::vector<float> Probabilities(const LayerAttention& attention, uint32_t head, uint64_t begin,
                                 uint64_t end) {
  const bool is_float = attention.rows().probabilities.front().view.dtype == DType::kF32;
  const double tolerance = is_float ? kFloatSumTolerance : kHalfSumTolerance;
  std::vector<float> rows((end - begin) * end);
  for (uint64_t position = begin; position < end; ++position) {
    float* row = &rows[(position - begin) * end];
    ReadProbabilityRow(attention.rows(), head, position - attention.first_row(), end, row);
    double sum = 0, hidden = 0;
    for (uint64_t j = 0; j < end; ++j)
      (j <= position ? sum : hidden) += static_cast<double>(row[j]);
    if (hidden != 0 || !(std::abs(sum - 1) <= tolerance)) {
      throw Error(Finding::kTraceMismatch,
                  fmt::format("layer {} head {} row {}: probabilities of visible keys add up to "
                              "{:.6g}, of later ones to {:.3g}; expected 1 within {} and 0",
                              attention.layer(), head, position, sum, hidden, tolerance))
          .File(attention.trace().path);
    }
    const auto norm = static_cast<float>(1 / sum);
    for (uint64_t j = 0; j <= position; ++j) row[j] *= norm;
  }
  return rows;
}

// All plans of one head over one stretch of rows.
std::vector<AttentionRows> MeasureStretch(const LayerAttention& attention,
                                          std::span<const LayerPlan* const> plans, uint32_t head,
                                          uint64_t begin, uint64_t end, const HeadFloats& floats) {
  const uint32_t kv_head = head / attention.group();
  std::vector<std::vector<uint8_t>> masks;
  std::vector<std::span<const uint8_t>> sets;
  for (const LayerPlan* plan : plans) {
    masks.push_back(Mask(*plan, plan->units == 1 ? 0 : kv_head, begin, end));
  }
  sets.assign(masks.begin(), masks.end());
  FloatMatrix v;
  if (!floats.v.empty()) v = MatrixOf(floats.v, end, attention.kv().v->head_dim);
  if (!attention.has_queries()) {
    const std::vector<float> rows = Probabilities(attention, head, begin, end);
    return CompareKeptSetsProbabilities(MatrixOf(rows, end - begin, end), v, sets);
  }
  const uint64_t dim = attention.head_dim();
  std::vector<float> queries((end - begin) * dim);
  ReadQueries(attention.rows(), head, begin - attention.first_row(), end - begin, queries.data());
  std::vector<int64_t> positions;
  for (uint64_t p = begin; p < end; ++p) positions.push_back(static_cast<int64_t>(p));
  const AttentionRule rule{attention.trace().scale, attention.trace().softcap,
                           attention.trace().window};
  return CompareKeptSets({MatrixOf(queries, end - begin, dim), positions},
                         {MatrixOf(floats.k, end, dim), v, {}, {}}, sets, rule);
}

LayerQuality Describe(uint32_t layer, std::span<const AttentionRows> heads) {
  LayerQuality quality;
  quality.layer = layer;
  AttentionSamples all;
  all.Add(heads);
  quality.summary = all.Summarise();
  quality.evicting = all.SummariseEvicting();
  for (const AttentionRows& head : heads) {
    AttentionSamples one;
    one.Add({&head, 1});
    quality.heads.push_back(one.Summarise());
    quality.evicting_heads.push_back(one.SummariseEvicting());
  }
  for (uint64_t row = 0; row < heads.front().rows(); ++row) {
    double mass = 0, error2 = 0, norm2 = 0;
    for (const AttentionRows& head : heads) {
      mass += head.mass[row];
      if (!head.has_output()) continue;
      error2 += head.error2[row];
      norm2 += head.norm2[row];
    }
    quality.step_mass.push_back(mass / static_cast<double>(heads.size()));
    if (heads.front().has_output()) {
      quality.step_output_error.push_back(std::sqrt(error2) / std::max(std::sqrt(norm2), 1e-12));
    }
  }
  return quality;
}

}  // namespace

std::vector<LayerQuality> MeasureLayer(const LayerAttention& attention,
                                       std::span<const LayerPlan* const> plans, uint64_t prompt,
                                       std::span<AttentionSamples> pooled, ThreadPool& pool) {
  KV_ASSERT(pooled.size() == plans.size());
  const uint64_t end = attention.end_row();
  const std::vector<uint64_t> borders = Borders(plans, prompt, end);
  std::vector<HeadFloats> floats(attention.kv_heads());
  pool.ParallelFor(floats.size(), [&](uint64_t h) {
    floats[h] = WidenHead(attention, static_cast<uint32_t>(h), end);
  });
  const uint32_t heads = attention.query_heads();
  std::vector<std::vector<AttentionRows>> rows(plans.size(), std::vector<AttentionRows>(heads));
  pool.ParallelFor(heads, [&](uint64_t head) {
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      const auto stretch = MeasureStretch(attention, plans, static_cast<uint32_t>(head), borders[i],
                                          borders[i + 1], floats[head / attention.group()]);
      for (size_t p = 0; p < plans.size(); ++p) AppendRows(stretch[p], rows[p][head]);
    }
  });
  std::vector<LayerQuality> qualities;
  for (size_t p = 0; p < plans.size(); ++p) {
    qualities.push_back(Describe(attention.layer(), rows[p]));
    pooled[p].Add(rows[p]);
  }
  return qualities;
}

}  // namespace kv::h2o
