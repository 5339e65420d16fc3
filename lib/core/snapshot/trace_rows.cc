// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/trace_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"

namespace kv {
namespace {

constexpr float kMostProbability = 1.01f;  // what half types round away, and more

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

bool HasFiniteQueries(const AttentionTrace& trace, const TraceLayer& layer, uint64_t row,
                      std::vector<float>& scratch) {
  scratch.resize(trace.head_dim);
  for (uint32_t head = 0; head < trace.query_heads; ++head) {
    ReadQueries(layer, head, row, 1, scratch.data());
    if (!AllFinite(scratch)) return false;
  }
  return true;
}

void RequireProbabilities(const AttentionTrace& trace, const TraceLayer& layer, uint64_t row,
                          std::vector<float>& scratch) {
  const uint64_t position = trace.q_start + row;
  scratch.resize(position + 1);
  for (uint32_t head = 0; head < trace.query_heads; ++head) {
    ReadProbabilityRow(layer, head, row, position + 1, scratch.data());
    const auto bad = std::find_if(scratch.begin(), scratch.end(),
                                  [](float p) { return !(p >= 0 && p <= kMostProbability); });
    if (bad == scratch.end()) continue;
    throw Error(Finding::kTraceMismatch,
                fmt::format("layer {} head {} row {}: the probability of key {} is {}, expected 0 "
                            "to 1",
                            layer.layer, head, position, bad - scratch.begin(), *bad))
        .File(trace.path);
  }
}

}  // namespace

UndefinedRows CheckTraceRows(const AttentionTrace& trace, ThreadPool& pool) {
  UndefinedRows undefined;
  for (const TraceLayer& layer : trace.layers) {
    std::vector<uint8_t> is_defined(trace.rows, 1);
    constexpr uint64_t kStep = 64;
    pool.ParallelFor((trace.rows + kStep - 1) / kStep, [&](uint64_t step) {
      std::vector<float> scratch;
      const uint64_t end = std::min(trace.rows, (step + 1) * kStep);
      for (uint64_t row = step * kStep; row < end; ++row) {
        if (layer.queries) {
          is_defined[row] = HasFiniteQueries(trace, layer, row, scratch);
        } else {
          RequireProbabilities(trace, layer, row, scratch);
        }
      }
    });
    undefined.of += trace.rows;
    for (uint64_t row = 0; row < trace.rows; ++row) {
      if (is_defined[row] != 0) continue;
      if (undefined.rows++ > 0) continue;
      undefined.first_layer = layer.layer;
      undefined.first_position = trace.q_start + row;
    }
  }
  return undefined;
}

std::string Remark(const UndefinedRows& undefined) {
  if (undefined.rows == 0) return {};
  return fmt::format(
      "{} of {} query rows hold NaN or Inf, the first at layer {} position {}: they "
      "are left out of every figure",
      undefined.rows, undefined.of, undefined.first_layer, undefined.first_position);
}

}  // namespace kv
