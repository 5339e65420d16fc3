// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// SIMD kernels of one-query scores: logits, maxima, exponentials and block sums in the order of the
// references.
#include "lib/study/dense/score.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/study/dense/score.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "lib/study/dense/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void QueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) {
  ref::QueryLogits(query, keys, scale, logits);
}
float RowMaximum(const float* row, size_t count) { return ref::RowMaximum(row, count); }
void ExpRow(float* row, size_t count, float maximum) { ref::ExpRow(row, count, maximum); }
double BlockSums(const float* row, size_t count, size_t block, float* sums) {
  return ref::BlockSums(row, count, block, sums);
}
double ExpBlockSums(float* row, size_t count, float maximum, size_t block, float* sums) {
  return ref::ExpBlockSums(row, count, maximum, block, sums);
}
void AddScaled(const float* row, size_t count, float weight, float* sums) {
  ref::AddScaled(row, count, weight, sums);
}

#else

constexpr size_t kKeysAtOnce = 4;   // keys that share one load of the query
constexpr size_t kTotalBlock = 64;  // values that are summed in float before double, as in kv::ref

HWY_INLINE void Clear(V* lanes) {
  for (size_t r = 0; r < kRegs; ++r) lanes[r] = hn::Zero(D());
}

HWY_INLINE float Fold(const V* lanes) {
  const V4 v = FoldTo4(lanes);
  return hn::GetLane(FoldFour(v, v, v, v));
}

// Adds query x key over the whole groups of 16 of `dim`, for several keys.
template <KeyType type, size_t keys>
HWY_INLINE void Multiply(const float* query, const std::byte* const* rows, size_t whole,
                         V lanes[][kRegs]) {
  const D d;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t r = 0; r < kRegs; ++r) {
      const size_t at = i + r * kStep;
      const V q = hn::LoadU(d, query + at);
      for (size_t k = 0; k < keys; ++k) {
        const V key = Widen<type>(rows[k] + at * kKeyBytes<type>);
        lanes[k][r] = hn::Add(lanes[k][r], hn::Mul(q, key));
      }
    }
  }
}

template <KeyType type>
void ComputeQueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) {
  constexpr size_t kBytes = kKeyBytes<type>;
  const size_t whole = keys.dim / kLanes * kLanes, rest = keys.dim - whole;
  // The last, partial 16 values are padded with zeros: 0 * q is +-0, which leaves a sum unchanged.
  float query_rest[kLanes] = {};
  for (size_t i = 0; i < rest; ++i) query_rest[i] = query[whole + i];
  alignas(64) std::byte key_rest[kKeysAtOnce][kLanes * kBytes] = {};
  for (size_t key = 0; key < keys.count; key += kKeysAtOnce) {
    const size_t count = std::min(kKeysAtOnce, keys.count - key);
    const std::byte* rows[kKeysAtOnce];
    for (size_t k = 0; k < kKeysAtOnce; ++k) {
      rows[k] = keys.data + (key + std::min(k, count - 1)) * keys.stride;
    }
    V lanes[kKeysAtOnce][kRegs];
    for (auto& of_key : lanes) Clear(of_key);
    Multiply<type, kKeysAtOnce>(query, rows, whole, lanes);
    if (rest != 0) {
      for (size_t k = 0; k < kKeysAtOnce; ++k) {
        std::memcpy(key_rest[k], rows[k] + whole * kBytes, rest * kBytes);
        rows[k] = key_rest[k];
      }
      Multiply<type, kKeysAtOnce>(query_rest, rows, kLanes, lanes);
    }
    const V4 sums = hn::Mul(
        FoldFour(FoldTo4(lanes[0]), FoldTo4(lanes[1]), FoldTo4(lanes[2]), FoldTo4(lanes[3])),
        hn::Set(D4(), scale));
    if (count == kKeysAtOnce) {
      hn::StoreU(sums, D4(), logits + key);
    } else {
      float last[4];
      hn::StoreU(sums, D4(), last);
      std::copy_n(last, count, logits + key);
    }
  }
}

void QueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) {
  switch (keys.type) {
    case KeyType::kF16:
      return ComputeQueryLogits<KeyType::kF16>(query, keys, scale, logits);
    case KeyType::kBF16:
      return ComputeQueryLogits<KeyType::kBF16>(query, keys, scale, logits);
    case KeyType::kF32:
      return ComputeQueryLogits<KeyType::kF32>(query, keys, scale, logits);
  }
}

float RowMaximum(const float* row, size_t count) {
  const D d;
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  V best[kRegs];
  for (V& v : best) v = hn::Set(d, kLeast);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t r = 0; r < kRegs; ++r) {
      const V v = hn::LoadU(d, row + i + r * kStep);
      best[r] = hn::IfThenElse(hn::Gt(v, best[r]), v, best[r]);  // not Max: a NaN must lose
    }
  }
  for (size_t r = 1; r < kRegs; ++r) best[0] = hn::Max(best[0], best[r]);
  float maximum = hn::GetLane(hn::MaxOfLanes(d, best[0]));
  for (; i < count; ++i) maximum = row[i] > maximum ? row[i] : maximum;
  return maximum;
}

void ExpRow(float* row, size_t count, float maximum) {
  const D d;
  const V top = hn::Set(d, maximum);
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    hn::StoreU(Exp(hn::Sub(hn::LoadU(d, row + i), top)), d, row + i);
  }
  for (; i < count; ++i) row[i] = ref::Exp(row[i] - maximum);
}

// Sums `count` values (exp(value - maximum) if kExp) in the order of ref::BlockSums, for equal
// bits.
template <bool kExp>
HWY_INLINE float SumRun(const float* run, size_t count, V top) {
  const D d;
  V lanes[kRegs];
  Clear(lanes);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t r = 0; r < kRegs; ++r) {
      V v = hn::LoadU(d, run + i + r * kStep);
      if constexpr (kExp) v = Exp(hn::Sub(v, top));
      lanes[r] = hn::Add(lanes[r], v);
    }
  }
  if (i < count) {
    float rest[kLanes] = {};
    const float maximum = hn::GetLane(top);
    for (size_t k = 0; i + k < count; ++k) {
      rest[k] = kExp ? ref::Exp(run[i + k] - maximum) : run[i + k];
    }
    for (size_t r = 0; r < kRegs; ++r) {
      lanes[r] = hn::Add(lanes[r], hn::LoadU(d, rest + r * kStep));
    }
  }
  return Fold(lanes);
}

double BlockSums(const float* row, size_t count, size_t block, float* sums) {
  double total = 0;
  if (block == 1) {
    for (size_t begin = 0; begin < count; begin += kTotalBlock) {
      total += SumRun<false>(row + begin, std::min(kTotalBlock, count - begin), hn::Zero(D()));
    }
    if (sums != row) std::copy_n(row, count, sums);
    return total;
  }
  for (size_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    sums[b] = SumRun<false>(row + begin, std::min(block, count - begin), hn::Zero(D()));
    total += sums[b];
  }
  return total;
}

double ExpBlockSums(float* row, size_t count, float maximum, size_t block, float* sums) {
  if (block % kLanes != 0) {
    HWY_NAMESPACE::ExpRow(row, count, maximum);
    return HWY_NAMESPACE::BlockSums(row, count, block, sums);
  }
  const V top = hn::Set(D(), maximum);
  double total = 0;
  for (size_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    sums[b] = SumRun<true>(row + begin, std::min(block, count - begin), top);
    total += sums[b];
  }
  return total;
}

void AddScaled(const float* row, size_t count, float weight, float* sums) {
  const D d;
  const V w = hn::Set(d, weight);
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::Mul(w, hn::LoadU(d, row + i))), d, sums + i);
  }
  ref::AddScaled(row + i, count - i, weight, sums + i);
}

#endif  // HWY_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(QueryLogits);
HWY_EXPORT(RowMaximum);
HWY_EXPORT(ExpRow);
HWY_EXPORT(BlockSums);
HWY_EXPORT(ExpBlockSums);
HWY_EXPORT(AddScaled);

void QueryLogits(const float* query, const KeyRows& keys, float scale, float* logits) noexcept {
  HWY_DYNAMIC_DISPATCH(QueryLogits)(query, keys, scale, logits);
}
float RowMaximum(const float* row, size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(RowMaximum)(row, count);
}
void ExpRow(float* row, size_t count, float maximum) noexcept {
  HWY_DYNAMIC_DISPATCH(ExpRow)(row, count, maximum);
}
double BlockSums(const float* row, size_t count, size_t block, float* sums) noexcept {
  return HWY_DYNAMIC_DISPATCH(BlockSums)(row, count, block, sums);
}
double ExpBlockSums(float* row, size_t count, float maximum, size_t block, float* sums) noexcept {
  return HWY_DYNAMIC_DISPATCH(ExpBlockSums)(row, count, maximum, block, sums);
}
void AddScaled(const float* row, size_t count, float weight, float* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddScaled)(row, count, weight, sums);
}

}  // namespace kv
#endif  // HWY_ONCE
