// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/kernels/score.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/kernels/score.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

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

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = 16;  // virtual lanes: of one vector, or of several shorter ones
using D = hn::CappedTag<float, kLanes>;
using V = hn::Vec<D>;
using D4 = hn::CappedTag<float, 4>;
using V4 = hn::Vec<D4>;
constexpr size_t kStep = hn::MaxLanes(D());
constexpr size_t kRegs = kLanes / kStep;
constexpr size_t kKeysAtOnce = 4;
constexpr size_t kTotalBlock = 64;

template <KeyType type>
constexpr size_t kKeyBytes = type == KeyType::kF32 ? 4 : 2;

// kStep values of a key, widened in registers.
template <KeyType type>
HWY_INLINE V Widen(const std::byte* p) {
  const D d;
  if constexpr (type == KeyType::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
#if HWY_TARGET <= HWY_AVX2
  } else if constexpr (type == KeyType::kF16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
  } else {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
    if constexpr (type == KeyType::kBF16) return hn::BitCast(d, hn::ShiftLeft<16>(bits));
    // Without F16C: shift the exponent into place and rebias by a multiplication, which is exact
    // for subnormals too; infinities and NaNs get their exponent back.
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(d32, 0x7fffu)));
    const auto scaled = hn::BitCast(d32, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
    const hn::Rebind<int32_t, D> di;
    const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x0f7fffff));
    const auto exponent =
        hn::IfThenElseZero(hn::RebindMask(d32, special), hn::Set(d32, 0x7f800000u));
    return hn::BitCast(d, hn::Or(sign, hn::Or(scaled, exponent)));
  }
}

HWY_INLINE void Clear(V* lanes) {
  for (size_t r = 0; r < kRegs; ++r) lanes[r] = hn::Zero(D());
}

// 16 virtual lanes to 4: i + 8, then i + 4.
HWY_INLINE V4 FoldTo4(const V* lanes) {
  if constexpr (kStep == 16) {
#if HWY_MAX_BYTES >= 64
    const hn::Half<D> d8;
    const auto a = hn::Add(hn::LowerHalf(d8, lanes[0]), hn::UpperHalf(d8, lanes[0]));
    return hn::Add(hn::LowerHalf(D4(), a), hn::UpperHalf(D4(), a));
#endif
  } else if constexpr (kStep == 8) {
#if HWY_MAX_BYTES == 32
    const auto a = hn::Add(lanes[0], lanes[1]);
    return hn::Add(hn::LowerHalf(D4(), a), hn::UpperHalf(D4(), a));
#endif
  } else {
#if HWY_MAX_BYTES == 16
    return hn::Add(hn::Add(lanes[0], lanes[2]), hn::Add(lanes[1], lanes[3]));
#endif
  }
}

// Four such vectors to their four sums: i + 2, then i + 1.
HWY_INLINE V4 FoldFour(V4 a, V4 b, V4 c, V4 d) {
  const D4 d4;
  const V4 ab = hn::Add(hn::InterleaveLower(d4, a, b), hn::InterleaveUpper(d4, a, b));
  const V4 cd = hn::Add(hn::InterleaveLower(d4, c, d), hn::InterleaveUpper(d4, c, d));
  return hn::Add(hn::ConcatLowerLower(d4, cd, ab), hn::ConcatUpperUpper(d4, cd, ab));
}

HWY_INLINE float Fold(const V* lanes) {
  const V4 v = FoldTo4(lanes);
  return hn::GetLane(FoldFour(v, v, v, v));
}

// Adds query x key over the whole 16s of `dim`, for several keys.
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
void QueryLogitsOf(const float* query, const KeyRows& keys, float scale, float* logits) {
  constexpr size_t kBytes = kKeyBytes<type>;
  const size_t whole = keys.dim / kLanes * kLanes, rest = keys.dim - whole;
  // The last, partial 16 are copied beside zeros: 0 * q is +-0, which no sum notices.
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
      return QueryLogitsOf<KeyType::kF16>(query, keys, scale, logits);
    case KeyType::kBF16:
      return QueryLogitsOf<KeyType::kBF16>(query, keys, scale, logits);
    case KeyType::kF32:
      return QueryLogitsOf<KeyType::kF32>(query, keys, scale, logits);
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

// kv::ref::Exp, step for step.
HWY_INLINE V Exp(V x) {
  const D d;
  const hn::Rebind<uint32_t, D> du;
  const auto underflows = hn::Lt(x, hn::Set(d, -87.0f));
  x = hn::IfThenElse(underflows, hn::Zero(d), x);
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::Add(hn::Mul(x, hn::Set(d, 1.44269504088896341f)), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::Sub(x, hn::Mul(n, hn::Set(d, 0.693359375f)));
  r = hn::Sub(r, hn::Mul(n, hn::Set(d, -2.12194440e-4f)));
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.3981999507e-3f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 8.3334519073e-3f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 4.1665795894e-2f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.6666665459e-1f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 5.0000001201e-1f));
  const V y = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(d, 1.0f));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, shifted)), hn::Set(du, 0x3f800000u));
  return hn::IfThenZeroElse(underflows, hn::Mul(y, hn::BitCast(d, power)));
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

// Sums `count` values (exp(value - maximum) if kExp) in the order of ref::BlockSums.
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
