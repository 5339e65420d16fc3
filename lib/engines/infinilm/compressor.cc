// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Runs the MLPs over groups of tokens, and builds the compressed cache from their results and the
// raw tokens.
#include "lib/engines/infinilm/compressor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/weights/weights.h"

namespace kv {
namespace {

MlpNumbers ToMlpNumbers(DType dtype) {
  if (dtype == DType::kF16) return MlpNumbers::kF16;
  if (dtype == DType::kBF16) return MlpNumbers::kBF16;
  KV_ASSERT(dtype == DType::kF32);
  return MlpNumbers::kF32;
}

std::vector<float> Widened(const TensorView& view, DType cache_dtype, WeightsCast cast) {
  const bool truncate =
      cast == WeightsCast::kTruncate && cache_dtype == DType::kF16 && view.dtype != DType::kF16;
  const DType stop = truncate ? DType::kF32 : cache_dtype;
  const Bytes rounded = RoundValues(view, stop);
  std::vector<float> values(view.elements());
  ToFloats(stop, rounded, values);
  if (truncate) {
    for (float& value : values) value = F16ToF32(TruncateToHalf(value));
  }
  return values;
}

// Destination of [token][head][dim] values of the result.
struct Target {
  Bytes& bytes;
  const KvTensor& like;

  std::byte* At(uint64_t token, uint64_t head) const {
    return bytes.data() + token * like.row_bytes() + head * like.head_dim * like.unit_bytes();
  }
};

// Compresses the groups of one segment. Rows of the MLP are (head, group); the pool shares tiles of
// them.
void CompressGroups(const KvTensor& tensor, const Segment& segment, uint32_t factor,
                    uint64_t token_in_result, const Mlp& mlp, const Target& target,
                    ThreadPool& pool) {
  const uint64_t rows = segment.groups * tensor.heads;
  const uint64_t tiles = (rows + mlp.tile_rows() - 1) / mlp.tile_rows();
  std::atomic<uint64_t> next{0};
  const auto work = [&](uint64_t) {
    Mlp::Scratch scratch;
    Bytes raw;
    std::vector<float> x(std::min(rows, mlp.tile_rows()) * mlp.in());
    std::vector<float> y(std::min(rows, mlp.tile_rows()) * mlp.out());
    for (uint64_t tile; (tile = next.fetch_add(1)) < tiles;) {
      const uint64_t begin = tile * mlp.tile_rows();
      const uint64_t end = std::min(rows, begin + mlp.tile_rows());
      for (uint64_t row = begin; row < end;) {  // one run of groups per head
        const auto head = static_cast<uint32_t>(row / segment.groups);
        const uint64_t group = row % segment.groups;
        const uint64_t run = std::min(end - row, segment.groups - group);
        raw.resize(run * mlp.in() * tensor.unit_bytes());
        Gather(tensor, segment.begin + group * factor, run * factor, head, 1, Order::kHeadTokenDim,
               raw);
        ToFloats(tensor.dtype, raw, std::span(x).subspan((row - begin) * mlp.in(), run * mlp.in()));
        row += run;
      }
      mlp.RunTile(x.data(), mlp.in(), end - begin, y.data(), mlp.out(), scratch);
      for (uint64_t row = begin; row < end; ++row) {
        FromFloats(tensor.dtype, std::span(y).subspan((row - begin) * mlp.out(), mlp.out()),
                   target.At(token_in_result + row % segment.groups, row / segment.groups));
      }
    }
  };
  pool.ParallelFor(std::min<uint64_t>(tiles, static_cast<uint64_t>(pool.threads())), work);
}

// Computes K or V of one layer after the step, [token][head][dim].
Bytes CompressTensor(const KvTensor& tensor, const StepPlan& plan, bool is_value, uint32_t layer,
                     const CompressorWeights& weights, WeightsCast cast, ThreadPool& pool) {
  Bytes bytes(plan.new_length * tensor.row_bytes());
  const Target target{bytes, tensor};
  uint64_t at = 0;
  for (const Segment& segment : plan.segments()) {
    if (segment.groups > 0) {
      const MlpRole role = is_value ? segment.v_role : segment.k_role;
      CompressGroups(tensor, segment, plan.factor, at,
                     MakeMlp(weights.Mlp(layer, role), tensor.dtype, cast), target, pool);
    }
    const uint64_t tail = segment.tail(plan.factor);
    // Copies bit by bit, including NaN payloads.
    Gather(tensor, segment.begin + segment.groups * plan.factor, tail, 0, tensor.heads,
           Order::kTokenHeadDim,
           std::span(bytes).subspan((at + segment.groups) * tensor.row_bytes()));
    at += segment.new_length(plan.factor);
  }
  KV_ASSERT(at == plan.new_length);
  return bytes;
}

}  // namespace

uint16_t TruncateToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const int exponent = static_cast<int>((bits >> 23) & 0xffu) - 127;
  const uint32_t mantissa = bits & 0x7fffffu;
  if (exponent == 128 && mantissa != 0) return static_cast<uint16_t>(sign | 0x7e00u);
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7c00u);
  if (exponent >= -14) {
    // Exponents 16..30 do not fit five bits and overflow into the sign, as in csrc (a range error
    // that is kept).
    return static_cast<uint16_t>(sign | (static_cast<uint32_t>(exponent + 15) << 10) |
                                 (mantissa >> 13));
  }
  if (exponent < -24) return sign;
  return static_cast<uint16_t>(sign | ((mantissa | 0x800000u) >> (-exponent - 14 + 13)));
}

Mlp MakeMlp(const LinearBlock* blocks, DType cache_dtype, WeightsCast cast) {
  std::array<MlpLinear, 3> linears;
  for (size_t slot = 0; slot < linears.size(); ++slot) {
    const LinearBlock& block = blocks[slot];
    linears[slot].in = static_cast<uint32_t>(block.cols());
    linears[slot].out = static_cast<uint32_t>(block.rows());
    linears[slot].weight = Widened(block.weight, cache_dtype, cast);
    if (block.has_bias()) linears[slot].bias = Widened(block.bias, cache_dtype, cast);
  }
  return Mlp(std::move(linears), ToMlpNumbers(cache_dtype));
}

Snapshot CompressCache(const Snapshot& snapshot, const CompressorWeights& weights,
                       const StepPlan& plan, WeightsCast cast, ThreadPool& pool,
                       Progress* progress) {
  Snapshot out;
  out.source = snapshot.source;
  out.format = snapshot.format;
  out.engine = snapshot.engine;
  out.model = snapshot.model;
  out.key_rotation = snapshot.key_rotation;
  out.storage = snapshot.storage;
  out.facts = {{"compression_factor", fmt::to_string(plan.factor)},
               {"compressed_from_tokens", fmt::to_string(plan.tokens)},
               {"image_tokens", fmt::to_string(plan.image_len)}};
  if (progress != nullptr) progress->Begin(plan.bytes_before);
  for (const LayerKv& layer : snapshot.layers) {
    LayerKv made{layer.index, layer.label, layer.group, {}, {}};
    for (const bool is_value : {false, true}) {
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      Bytes bytes = CompressTensor(tensor, plan, is_value, layer.index, weights, cast, pool);
      out.spools.push_back(FileSource::FromBytes(
          std::move(bytes), fmt::format("layer {} {}", layer.index, is_value ? 'V' : 'K')));
      KvTensor result =
          ContiguousTensor(out.spools.back()->bytes().data(), tensor.dtype, plan.new_length,
                           tensor.heads, tensor.head_dim, Order::kTokenHeadDim);
      if (is_value) {
        made.v = std::move(result);
      } else {
        made.k = std::move(result);
      }
      if (progress != nullptr) progress->Advance(plan.tokens * tensor.row_bytes());
    }
    out.layers.push_back(std::move(made));
  }
  return out;
}

}  // namespace kv
