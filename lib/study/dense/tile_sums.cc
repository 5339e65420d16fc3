// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// AddTileBlockSums: logits, softmax and block sums of 64 query rows at once, one row per vector
// lane, without the BLAS and with the same bits on every machine.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "lib/core/base/half.h"
#include "lib/study/dense/score.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/study/dense/tile_sums.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "lib/study/dense/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights, float*,
                      float* sums) {
  ref::AddTileBlockSums(tile, block, row_weights, sums);
}

#else

// Matrices here are [key][kSubTileRows]: one row holds the values of every query for one key.
constexpr size_t kRows = kSubTileRows;
constexpr size_t kKeys = 6;
// The tile uses 4 x 6 accumulators of AVX-512's 32 registers, 2 x 6 where there are 16.
constexpr size_t kVecs = kStep == 16 ? 4 : 2;
constexpr size_t kRun = 64;  // weights that are summed in float before double, as in kv::ref
constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Scratch {
  float* queries;  // [dim][kRows], scaled
  float* keys;     // [kKeys][dim], widened
  float* logits;   // [columns, whole groups of kKeys][kRows]
  float* maximum;  // [kRows]
  float* factors;  // [kRows]
};

template <KeyType type>
void WidenKey(const std::byte* row, size_t dim, float* out) {
  size_t i = 0;
  for (; i + kStep <= dim; i += kStep) {
    hn::StoreU(Widen<type>(row + i * kKeyBytes<type>), D(), out + i);
  }
  if (i == dim) return;
  std::byte rest[kStep * kKeyBytes<type>] = {};
  std::copy_n(row + i * kKeyBytes<type>, (dim - i) * kKeyBytes<type>, rest);
  float wide[kStep];
  hn::StoreU(Widen<type>(rest), D(), wide);
  std::copy_n(wide, dim - i, out + i);
}

void WidenKey(const KeyRows& keys, size_t key, float* out) {
  const std::byte* row = keys.data + key * keys.stride;
  switch (keys.type) {
    case KeyType::kF16:
      return WidenKey<KeyType::kF16>(row, keys.dim, out);
    case KeyType::kBF16:
      return WidenKey<KeyType::kBF16>(row, keys.dim, out);
    case KeyType::kF32:
      return WidenKey<KeyType::kF32>(row, keys.dim, out);
  }
}

// Computes logits[key][row] of kKeys keys.
HWY_INLINE void Multiply(const float* HWY_RESTRICT queries, const float* HWY_RESTRICT keys,
                         size_t dim, float* HWY_RESTRICT logits) {
  const D d;
  for (size_t r = 0; r < kRows; r += kVecs * kStep) {
    V sums[kKeys][kVecs];
    for (auto& of_key : sums) {
      for (V& v : of_key) v = hn::Zero(d);
    }
    for (size_t i = 0; i < dim; ++i) {
      V query[kVecs];
      for (size_t v = 0; v < kVecs; ++v)
        query[v] = hn::Load(d, queries + i * kRows + r + v * kStep);
      for (size_t k = 0; k < kKeys; ++k) {
        const V key = hn::Set(d, keys[k * dim + i]);
        for (size_t v = 0; v < kVecs; ++v) sums[k][v] = Fused(query[v], key, sums[k][v]);
      }
    }
    for (size_t k = 0; k < kKeys; ++k) {
      for (size_t v = 0; v < kVecs; ++v) {
        hn::Store(sums[k][v], d, logits + k * kRows + r + v * kStep);
      }
    }
  }
}

void PackQueries(const ScoreTile& tile, float* out) {
  if (tile.rows < kRows) std::fill_n(out, tile.keys.dim * kRows, 0.0f);
  for (size_t r = 0; r < tile.rows; ++r) {
    const float* from = tile.queries + r * tile.query_stride;
    for (size_t i = 0; i < tile.keys.dim; ++i) out[i * kRows + r] = from[i] * tile.scale;
  }
}

// Computes the logits of all keys and the largest of each row; a key that a row does not see gets
// -infinity.
void FillLogits(const ScoreTile& tile, const Scratch& scratch) {
  const D d;
  const size_t columns = tile.columns(), dim = tile.keys.dim;
  std::fill_n(scratch.maximum, kRows, kNothing);
  for (size_t begin = 0; begin < columns; begin += kKeys) {
    const size_t count = std::min(kKeys, columns - begin);
    for (size_t k = 0; k < kKeys; ++k) {
      WidenKey(tile.keys, begin + std::min(k, count - 1), scratch.keys + k * dim);
    }
    float* group = scratch.logits + begin * kRows;
    Multiply(scratch.queries, scratch.keys, dim, group);
    for (size_t k = 0; k < count; ++k) {
      float* row = group + k * kRows;
      const size_t key = begin + k;
      if (key >= tile.visible) std::fill_n(row, std::min(kRows, key - tile.visible + 1), kNothing);
      if (tile.rows < kRows) std::fill(row + tile.rows, row + kRows, kNothing);
    }
    for (size_t r = 0; r < kRows; r += kStep) {
      V best = hn::Load(d, scratch.maximum + r);
      for (size_t k = 0; k < count; ++k) {
        const V v = hn::Load(d, group + k * kRows + r);
        best = hn::IfThenElse(hn::Gt(v, best), v, best);  // not Max: a NaN must lose
      }
      hn::Store(best, d, scratch.maximum + r);
    }
  }
}

// Computes sums[row], the weights of up to kRun keys; with kKeep they replace the logits.
template <bool kKeep>
HWY_INLINE void SumRun(float* logits, size_t count, const float* maximum, float* sums) {
  const D d;
  for (size_t r = 0; r < kRows; r += kVecs * kStep) {
    V top[kVecs], sum[kVecs];
    for (size_t v = 0; v < kVecs; ++v) {
      top[v] = hn::Load(d, maximum + r + v * kStep);
      sum[v] = hn::Zero(d);
    }
    for (size_t k = 0; k < count; ++k) {
      float* row = logits + k * kRows + r;
      for (size_t v = 0; v < kVecs; ++v) {
        const V weight = Exp(hn::Sub(hn::Load(d, row + v * kStep), top[v]));
        sum[v] = hn::Add(sum[v], weight);
        if constexpr (kKeep) hn::Store(weight, d, row + v * kStep);
      }
    }
    for (size_t v = 0; v < kVecs; ++v) hn::Store(sum[v], d, sums + r + v * kStep);
  }
}

// Turns logits into block sums [block][row], in place, and writes `totals` of each row.
void SumBlocks(size_t columns, size_t block, const Scratch& scratch, double* totals) {
  alignas(64) float run[kRows];
  std::fill_n(totals, kRows, 0.0);
  const size_t span = block == 1 ? kRun : block;
  for (size_t begin = 0; begin < columns; begin += span) {
    const size_t end = std::min(columns, begin + span);
    alignas(64) float sums[kRows] = {};
    for (size_t at = begin; at < end; at += kRun) {
      float* logits = scratch.logits + at * kRows;
      const size_t count = std::min(kRun, end - at);
      if (block == 1) {
        SumRun<true>(logits, count, scratch.maximum, run);
      } else {
        SumRun<false>(logits, count, scratch.maximum, run);
      }
      for (size_t r = 0; r < kRows; ++r) {
        sums[r] += run[r];
        totals[r] += run[r];
      }
    }
    if (block != 1) std::copy_n(sums, kRows, scratch.logits + begin / block * kRows);
  }
}

// Adds factors . sums[b] to out[b].
void AddRows(const float* sums, size_t blocks, const float* factors, float* out) {
  const D d;
  for (size_t begin = 0; begin < blocks; begin += 4) {
    const size_t count = std::min<size_t>(4, blocks - begin);
    V4 folded[4];
    for (size_t b = 0; b < 4; ++b) {
      const float* of_block = sums + (begin + std::min(b, count - 1)) * kRows;
      V lanes[kRegs];
      for (size_t r = 0; r < kRegs; ++r) lanes[r] = hn::Zero(d);
      for (size_t r = 0; r < kRows; r += kStep) {
        V& lane = lanes[r / kStep % kRegs];
        lane = Fused(hn::Load(d, factors + r), hn::Load(d, of_block + r), lane);
      }
      folded[b] = FoldTo4(lanes);
    }
    float last[4];
    hn::StoreU(FoldFour(folded[0], folded[1], folded[2], folded[3]), D4(), last);
    for (size_t b = 0; b < count; ++b) out[begin + b] += last[b];
  }
}

void AddSubTile(const ScoreTile& tile, size_t block, const float* row_weights,
                const Scratch& scratch, float* sums) {
  const size_t columns = tile.columns();
  PackQueries(tile, scratch.queries);
  FillLogits(tile, scratch);
  bool sees[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    sees[r] = scratch.maximum[r] != kNothing;
    if (!sees[r]) scratch.maximum[r] = 0;
  }
  double totals[kRows];
  SumBlocks(columns, block, scratch, totals);
  for (size_t r = 0; r < kRows; ++r) {
    const double weight = row_weights == nullptr || r >= tile.rows ? 1.0 : row_weights[r];
    scratch.factors[r] = sees[r] ? static_cast<float>(weight / totals[r]) : 0.0f;
  }
  AddRows(scratch.logits, (columns + block - 1) / block, scratch.factors, sums);
}

void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights, float* scratch,
                      float* sums) {
  const size_t dim = tile.keys.dim;
  auto* at = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch) + 63) / 64 * 64);
  Scratch parts;
  parts.maximum = at;
  parts.factors = at + kRows;
  parts.queries = at + 2 * kRows;
  parts.logits = parts.queries + dim * kRows;
  parts.keys = parts.logits + (tile.columns() + kKeys - 1) / kKeys * kKeys * kRows;
  for (size_t begin = 0; begin < tile.rows; begin += kRows) {
    ScoreTile part = tile;
    part.queries += begin * tile.query_stride;
    part.rows = std::min(kRows, tile.rows - begin);
    part.visible += begin;
    AddSubTile(part, block, row_weights == nullptr ? nullptr : row_weights + begin, parts, sums);
  }
}

#endif  // HWY_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(AddTileBlockSums);

size_t BlockSumScratchFloats(size_t dim, size_t columns) noexcept {
  constexpr size_t kAlignment = 16, kMostKeysAtOnce = 8;
  return kAlignment + (2 + dim + columns + kMostKeysAtOnce) * kSubTileRows + kMostKeysAtOnce * dim;
}

void AddTileBlockSums(const ScoreTile& tile, size_t block, const float* row_weights, float* scratch,
                      float* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddTileBlockSums)(tile, block, row_weights, scratch, sums);
}

}  // namespace kv
#endif  // HWY_ONCE
