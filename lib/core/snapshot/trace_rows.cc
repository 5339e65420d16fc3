// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/trace_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

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

bool HasFiniteGradients(const AttentionTrace& trace, const TraceLayer& layer, uint64_t position,
                        std::vector<float>& scratch) {
  scratch.resize(layer.gradients->shape[3]);
  for (uint64_t sample = 0; sample < trace.gradients->samples; ++sample) {
    for (uint32_t head = 0; head < trace.query_heads; ++head) {
      ReadGradient(trace, layer, sample, position, head, scratch.data());
      if (!AllFinite(scratch)) return false;
    }
  }
  return true;
}

// Whether a row is free of NaN and Inf; may be asked from any thread, each with a buffer.
using RowCheck = std::function<bool(uint64_t row, std::vector<float>& scratch)>;

void CountUndefined(uint32_t layer, uint64_t first, uint64_t rows, const RowCheck& check,
                    ThreadPool& pool, UndefinedRows& undefined) {
  std::vector<uint8_t> is_defined(rows, 1);
  constexpr uint64_t kStep = 64;
  pool.ParallelFor((rows + kStep - 1) / kStep, [&](uint64_t step) {
    std::vector<float> scratch;
    const uint64_t end = std::min(rows, (step + 1) * kStep);
    for (uint64_t row = step * kStep; row < end; ++row) is_defined[row] = check(row, scratch);
  });
  undefined.of += rows;
  for (uint64_t row = 0; row < rows; ++row) {
    if (is_defined[row] != 0) continue;
    if (undefined.rows++ > 0) continue;
    undefined.first_layer = layer;
    undefined.first_position = first + row;
  }
}

}  // namespace

UndefinedRows CheckTraceRows(const AttentionTrace& trace, ThreadPool& pool) {
  UndefinedRows undefined;
  for (const TraceLayer& layer : trace.layers) {
    const RowCheck is_defined = [&](uint64_t row, std::vector<float>& scratch) {
      if (layer.queries) return HasFiniteQueries(trace, layer, row, scratch);
      RequireProbabilities(trace, layer, row, scratch);
      return true;
    };
    CountUndefined(layer.layer, trace.q_start, trace.rows, is_defined, pool, undefined);
  }
  return undefined;
}

UndefinedRows CheckGradients(const AttentionTrace& trace, ThreadPool& pool) {
  UndefinedRows undefined;
  if (!trace.gradients) return undefined;
  const GradientRows& rows = *trace.gradients;
  for (const TraceLayer& layer : trace.layers) {
    if (!layer.gradients) continue;
    const RowCheck is_defined = [&](uint64_t row, std::vector<float>& scratch) {
      return HasFiniteGradients(trace, layer, rows.begin + row, scratch);
    };
    CountUndefined(layer.layer, rows.begin, rows.rows, is_defined, pool, undefined);
  }
  return undefined;
}

std::string Remark(const UndefinedRows& undefined, std::string_view what) {
  if (undefined.rows == 0) return {};
  return fmt::format(
      "{} of {} {} hold NaN or Inf, the first at layer {} position {}: they are left out of every "
      "figure",
      undefined.rows, undefined.of, what, undefined.first_layer, undefined.first_position);
}

}  // namespace kv
