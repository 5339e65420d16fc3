// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/attention_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"

namespace kv {

namespace {

// Returns the largest relative difference between recorded and stored keys that rounding explains:
// the error of the stored type plus a margin.
double NearKeys(DType dtype) {
  if (!IsBlockQuantised(dtype) || dtype == DType::kQ8_0) return 0.02;
  return dtype == DType::kQ5_0 || dtype == DType::kQ5_1 ? 0.07 : 0.13;
}

// Converts `count` elements along the last axis, at `data` with `step` bytes between them.
void WidenRun(DType dtype, const std::byte* data, uint64_t step, uint64_t count, float* out) {
  const uint32_t bytes = Info(dtype).block_bytes;
  if (step == bytes) {
    ToFloats(dtype, {data, count * bytes}, {out, count});
    return;
  }
  for (uint64_t i = 0; i < count; ++i) ToFloats(dtype, {data + i * step, bytes}, {out + i, 1});
}

Error Mismatch(std::string message) { return Error(Finding::kTraceMismatch, std::move(message)); }

// Returns |a - b| / |a| for the snapshot's tensor and the trace's own.
double Difference(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  const TensorView& recorded) {
  const uint64_t row = recorded.shape[1] * recorded.shape[2];
  std::vector<float> theirs(row);
  double error2 = 0, norm2 = 0;
  constexpr uint64_t kStep = 256;
  for (uint64_t begin = 0; begin < recorded.shape[0]; begin += kStep) {
    const uint64_t count = std::min(kStep, recorded.shape[0] - begin);
    std::vector<float> ours = GatherFloats(tensor, begin, count, Order::kTokenHeadDim);
    UndoHadamard(snapshot, tensor, is_value, ours);
    for (uint64_t t = 0; t < count; ++t) {
      for (uint64_t h = 0; h < recorded.shape[1]; ++h) {
        WidenRun(recorded.dtype,
                 recorded.data + (begin + t) * recorded.strides[0] + h * recorded.strides[1],
                 recorded.strides[2], recorded.shape[2], &theirs[h * recorded.shape[2]]);
      }
      for (uint64_t i = 0; i < row; ++i) {
        const double a = ours[t * row + i], d = a - theirs[i];
        error2 += d * d;
        norm2 += a * a;
      }
    }
  }
  return std::sqrt(error2 / std::max(norm2, 1e-30));
}

void RequireSameTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                       const TensorView& recorded) {
  const char* what = is_value ? "V" : "K";
  if (recorded.shape[0] > tensor.tokens()) {
    throw Mismatch(fmt::format("{} has {} tokens in the trace, {} in the snapshot", what,
                               recorded.shape[0], tensor.tokens()));
  }
  if (recorded.shape[1] != tensor.heads || recorded.shape[2] != tensor.head_dim) {
    throw Mismatch(fmt::format("{} has {} heads x {} in the trace, {} x {} in the snapshot", what,
                               recorded.shape[1], recorded.shape[2], tensor.heads,
                               tensor.head_dim));
  }
  const double difference = Difference(snapshot, tensor, is_value, recorded);
  const double near = NearKeys(tensor.dtype);
  if (!(difference <= near)) {
    throw Mismatch(fmt::format(
        "the trace's {} differs from the snapshot's by {:.3g} of its norm; up to {} is rounding",
        what, difference, near));
  }
}

void RequireLayer(const AttentionTrace& trace, const TraceLayer& of_trace, const Snapshot& snapshot,
                  const LayerKv& layer) {
  const KvTensor& k = layer.k;
  if (k.tokens() < trace.end_position()) {
    throw Mismatch(fmt::format("the trace's rows end at position {}, the snapshot has {} tokens",
                               trace.end_position(), k.tokens()));
  }
  if (trace.head_dim != 0 && k.head_dim != trace.head_dim) {
    throw Mismatch(fmt::format("queries have head dim {}, the snapshot's keys {}", trace.head_dim,
                               k.head_dim));
  }
  if (trace.kv_heads != 0 && k.heads != trace.kv_heads) {
    throw Mismatch(
        fmt::format("the trace has {} kv heads, the snapshot {}", trace.kv_heads, k.heads));
  }
  if (trace.query_heads % k.heads != 0) {
    throw Mismatch(fmt::format("{} query heads are not a multiple of {} kv heads",
                               trace.query_heads, k.heads));
  }
  if (of_trace.gradients && layer.v && of_trace.gradients->shape[3] != layer.v->head_dim) {
    throw Mismatch(fmt::format("gradients have head dim {}, the snapshot's values {}",
                               of_trace.gradients->shape[3], layer.v->head_dim));
  }
  if (of_trace.keys) RequireSameTensor(snapshot, k, false, *of_trace.keys);
  if (of_trace.values && layer.v) RequireSameTensor(snapshot, *layer.v, true, *of_trace.values);
}

// Rows of the trace are positions, rows of the snapshot are cells: this checks that they coincide.
void RequirePlainPositions(const AttentionTrace& trace, const CellGroup& group) {
  const uint64_t end = std::min<uint64_t>(group.cells.size(), trace.end_position());
  for (uint64_t i = 0; i < end; ++i) {
    if (group.cells[i].position == static_cast<int64_t>(i)) continue;
    throw Mismatch(fmt::format("cell {} of the snapshot holds position {}: a trace needs rows 0, "
                               "1, 2 ... in order",
                               i, group.cells[i].position))
        .Hint("select one sequence, or record the cache without holes");
  }
}

}  // namespace

std::string_view Name(TraceLevel level) {
  constexpr std::string_view kNames[] = {"queries", "probabilities", "block scores"};
  return kNames[static_cast<size_t>(level)];
}

const TraceLayer* AttentionTrace::Find(uint32_t layer) const {
  for (const TraceLayer& candidate : layers) {
    if (candidate.layer == layer) return &candidate;
  }
  return nullptr;
}

void ReadQueries(const TraceLayer& layer, uint32_t head, uint64_t row_begin, uint64_t count,
                 float* out) {
  KV_ASSERT(layer.queries && row_begin + count <= layer.queries->shape[0]);
  const TensorView& view = *layer.queries;
  for (uint64_t r = 0; r < count; ++r) {
    WidenRun(view.dtype, view.data + (row_begin + r) * view.strides[0] + head * view.strides[1],
             view.strides[2], view.shape[2], out + r * view.shape[2]);
  }
}

void ReadGradient(const AttentionTrace& trace, const TraceLayer& layer, uint64_t sample,
                  uint64_t position, uint32_t head, float* out) {
  KV_ASSERT(layer.gradients && trace.gradients && trace.gradients->Has(position));
  const TensorView& view = *layer.gradients;
  const uint64_t row = position - trace.gradients->begin;
  KV_ASSERT(sample < view.shape[0] && row < view.shape[1] && head < view.shape[2]);
  WidenRun(view.dtype,
           view.data + sample * view.strides[0] + row * view.strides[1] + head * view.strides[2],
           view.strides[3], view.shape[3], out);
}

void ReadProbabilityRow(const TraceLayer& layer, uint32_t head, uint64_t row, uint64_t positions,
                        float* out) {
  std::fill_n(out, positions, 0.0f);
  const auto after = std::upper_bound(
      layer.probabilities.begin(), layer.probabilities.end(), row,
      [](uint64_t r, const ProbabilityPiece& piece) { return r < piece.row_begin; });
  KV_ASSERT(after != layer.probabilities.begin());
  const ProbabilityPiece& piece = *std::prev(after);
  KV_ASSERT(row < piece.row_begin + piece.rows());
  const TensorView& view = piece.view;
  if (piece.key_begin >= positions) return;
  const uint64_t count = std::min(piece.keys(), positions - piece.key_begin);
  WidenRun(view.dtype,
           view.data + head * view.strides[0] + (row - piece.row_begin) * view.strides[1],
           view.strides[2], count, out + piece.key_begin);
}

void RequireMatch(const AttentionTrace& trace, const Snapshot& snapshot) {
  RequireHadamardKnown(snapshot);
  for (const TraceLayer& of_trace : trace.layers) {
    const LayerKv* layer = snapshot.Find(of_trace.layer);
    const std::string name = fmt::format("layer {}", of_trace.layer);
    if (layer == nullptr) {
      throw Mismatch(fmt::format("the trace has {}, the snapshot has no such layer", name))
          .File(trace.path);
    }
    try {
      RequireLayer(trace, of_trace, snapshot, *layer);
    } catch (Error& error) {
      throw error.In(name).File(trace.path);
    }
  }
  try {
    for (const CellGroup& group : snapshot.cell_groups) RequirePlainPositions(trace, group);
    const size_t both = std::min(trace.tokens.size(), snapshot.tokens.size());
    for (size_t i = 0; i < both; ++i) {
      if (trace.tokens[i] == snapshot.tokens[i]) continue;
      throw Mismatch(fmt::format(
          "token {} is {} in the trace and {} in the snapshot: they belong to different prompts", i,
          trace.tokens[i], snapshot.tokens[i]));
    }
  } catch (Error& error) {
    throw error.File(trace.path);
  }
}

std::optional<ModelGeometry> FindGeometry(const AttentionTrace& trace) {
  if (trace.kv_heads == 0 && trace.head_dim == 0) return std::nullopt;
  ModelGeometry geometry;
  geometry.source = trace.path;
  // Sets only one of the two: RequireMatch reports contradictions with the snapshot.
  geometry.uniform.kv_heads = trace.kv_heads;
  if (trace.kv_heads == 0) geometry.uniform.k_dim = geometry.uniform.v_dim = trace.head_dim;
  geometry.query_heads = trace.query_heads;
  return geometry;
}

namespace {

constexpr float kMostProbability = 1.01f;  // 1, plus a margin for rounding to half types

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
                "layer {} head {} row {}: the probability of key {} is {}, expected 0 "
                "to 1",
                layer.layer, head, position, bad - scratch.begin(), *bad)
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

// Returns true if a row is free of NaN and Inf; called from any thread, each with its own buffer.
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
