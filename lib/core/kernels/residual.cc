// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The kernels of residual.h. Distances between floats are differences of their ordinals, which
// ascend as the values do. Small distances are symbols of their own; larger ones are a bucket,
// four to an octave, and raw bits. Packing and unpacking the raw bits, whose widths vary from value
// to value, takes prefix sums of the widths to find where each value's bits begin.
//
// The second part measures the errors of rows in floats. There too, every target adds in the same
// order.

#include "lib/core/kernels/residual.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "lib/core/base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/residual.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

#ifndef KV_ERROR_SCALE_CONSTANTS
#define KV_ERROR_SCALE_CONSTANTS
namespace kv {
constexpr size_t kErrorLanes = 16;
constexpr float kMostError = 1e30f, kMostWeighted = 64;
}  // namespace kv
#endif

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

void ClassesT(const uint16_t* expected, const int16_t* scales, size_t count, int32_t factor,
              bool bfloat, uint8_t* classes) {
  ref::ClassifyResiduals(expected, scales, count, factor, bfloat, classes);
}
void SymbolsT(const uint16_t* values, const uint16_t* expected, size_t count,
              const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) {
  ref::ResidualSymbols(values, expected, count, grid, symbols, extras);
}
size_t PackT(const uint8_t* symbols, const uint16_t* extras, size_t count, std::byte* bytes,
             size_t at) {
  return ref::PackResidualBits(symbols, extras, count, bytes, at);
}
bool ValuesT(const uint8_t* symbols, const uint16_t* expected, size_t count,
             const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) {
  return ref::ResidualValues(symbols, expected, count, grid, bits, values);
}

#else

using DI = hn::CappedTag<int32_t, 16>;
using DU = hn::RebindToUnsigned<DI>;
using DF = hn::RebindToFloat<DI>;
using D16 = hn::Rebind<uint16_t, DI>;
using DS16 = hn::Rebind<int16_t, DI>;
using D8 = hn::Rebind<uint8_t, DI>;
using VI = hn::Vec<DI>;

constexpr size_t kStep = hn::MaxLanes(DI());

HWY_INLINE VI Load16(const uint16_t* from) {
  return hn::BitCast(DI(), hn::PromoteTo(DU(), hn::LoadU(D16(), from)));
}
HWY_INLINE void Store8(VI v, uint8_t* to) { hn::StoreU(hn::DemoteTo(D8(), v), D8(), to); }
HWY_INLINE void Store16(VI v, uint16_t* to) { hn::StoreU(hn::DemoteTo(D16(), v), D16(), to); }

// Returns the ordinals of values without their low zeros; they ascend as the values do. `top` is
// the sign bit.
HWY_INLINE VI ToPlace(VI value, VI top) {
  const DI d;
  const VI all = hn::Sub(hn::Add(top, top), hn::Set(d, 1));
  const auto negative = hn::Ne(hn::And(value, top), hn::Zero(d));
  return hn::Xor(value, hn::IfThenElse(negative, all, top));
}

void ClassesT(const uint16_t* expected, const int16_t* scales, size_t count, int32_t factor,
              bool bfloat, uint8_t* classes) {
  const DI d;
  const int shift = bfloat ? 7 : 10;
  const VI mask = hn::Set(d, bfloat ? 0xff : 0x1f), one = hn::Set(d, 1);
  const VI most = hn::Set(d, static_cast<int32_t>(kResidualClasses) - 1);
  const VI add = hn::Set(d, factor);
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const VI exponent =
        hn::Max(hn::And(hn::ShiftRightSame(Load16(expected + i), shift), mask), one);
    const VI scale = hn::PromoteTo(d, hn::LoadU(DS16(), scales + i));
    const VI c = hn::Sub(hn::ShiftRight<1>(hn::Add(scale, add)), exponent);
    Store8(hn::Min(hn::Max(c, hn::Zero(d)), most), classes + i);
  }
  ref::ClassifyResiduals(expected + i, scales + i, count - i, factor, bfloat, classes + i);
}

void SymbolsT(const uint16_t* values, const uint16_t* expected, size_t count,
              const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) {
  const DI d;
  const auto zeros = static_cast<int>(grid.low_zeros);
  const VI top = hn::Set(d, 0x8000 >> zeros), one = hn::Set(d, 1), zero = hn::Zero(d);
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    const VI value = hn::ShiftRightSame(Load16(values + i), zeros);
    const VI near = hn::ShiftRightSame(Load16(expected + i), zeros);
    // Distances are counted away from zero, so that the same sign means "larger" for negative
    // values.
    VI distance = hn::Sub(ToPlace(value, top), ToPlace(near, top));
    distance = hn::IfThenElse(hn::Ne(hn::And(near, top), zero), hn::Neg(distance), distance);
    const VI z = hn::Abs(distance);
    // Converting to float yields the octave as the exponent and the next two bits as the top of the
    // mantissa.
    const VI octave = hn::BitCast(d, hn::ConvertTo(DF(), z));
    const auto large = hn::Gt(z, hn::Set(d, 15));
    const VI bucket =
        hn::IfThenElse(large, hn::Sub(hn::ShiftRight<21>(octave), hn::Set(d, 127 * 4)), z);
    const VI bits = hn::IfThenElseZero(large, hn::Sub(hn::ShiftRight<2>(bucket), hn::Set(d, 2)));
    const VI below = hn::Sub(hn::Shl(one, bits), one);
    Store16(hn::And(z, below), extras + i);
    const VI negative = hn::Add(bucket, hn::Set(d, static_cast<int32_t>(kResidualMagnitudes) - 1));
    Store8(hn::IfThenElse(hn::Lt(distance, zero), negative, bucket), symbols + i);
  }
  ref::ResidualSymbols(values + i, expected + i, count - i, grid, symbols + i, extras + i);
}

using DB = hn::FixedTag<uint8_t, 16>;
using VB = hn::Vec<DB>;

// Returns the buckets of 16 symbols. CountRawBits returns how many raw bits each has.
HWY_INLINE VB GetBucket(VB symbol) {
  const DB d;
  const VB half = hn::Set(d, kResidualMagnitudes);
  return hn::IfThenElse(hn::Lt(symbol, half), symbol,
                        hn::Sub(symbol, hn::Set(d, kResidualMagnitudes - 1)));
}
HWY_INLINE VB CountRawBits(VB bucket) {
  const DB d;
  const VB bits = hn::SaturatedSub(hn::ShiftRight<2>(bucket), hn::Set(d, 2));
  return hn::IfThenZeroElse(hn::Lt(bucket, hn::Set(d, 16)), bits);
}
// Replaces each byte by the sum of itself and all before it.
HWY_INLINE VB PrefixSums(VB v) {
  const DB d;
  v = hn::Add(v, hn::ShiftLeftBytes<1>(d, v));
  v = hn::Add(v, hn::ShiftLeftBytes<2>(d, v));
  v = hn::Add(v, hn::ShiftLeftBytes<4>(d, v));
  return hn::Add(v, hn::ShiftLeftBytes<8>(d, v));
}

size_t PackT(const uint8_t* symbols, const uint16_t* extras, size_t count, std::byte* bytes,
             size_t at) {
  // Combines four values into one number of at most 52 bits.
  const hn::FixedTag<uint32_t, 4> d32;
  const hn::FixedTag<uint64_t, 2> d64;
  const hn::FixedTag<uint16_t, 8> d16;
  const DB d8;
  alignas(16) uint64_t words[4];
  alignas(16) uint8_t ends[16];
  size_t i = 0;
  uint64_t pending = LoadLE<uint8_t>(bytes + at / 8);
  size_t byte = at / 8;
  uint32_t held = at % 8;
  for (; i + 16 <= count; i += 16) {
    const VB bits = CountRawBits(GetBucket(hn::LoadU(d8, symbols + i)));
    hn::Store(PrefixSums(bits), d8, ends);
    // If all sixteen distances are small, there are no raw bits to pack.
    if (ends[15] == 0) continue;
    const auto pairs = [&](auto extra, auto wide) HWY_ATTR {
      // Joins x0 | x1 << n0 in 32 bits, then two results in 64.
      const auto x = hn::BitCast(d32, extra), n = hn::BitCast(d32, wide);
      const auto low = hn::And(x, hn::Set(d32, 0xffff)), n0 = hn::And(n, hn::Set(d32, 0xffff));
      const auto two = hn::Or(low, hn::Shl(hn::ShiftRight<16>(x), n0));
      const auto sums = hn::Add(n0, hn::ShiftRight<16>(n));
      const auto y = hn::BitCast(d64, two), m = hn::BitCast(d64, sums);
      const auto first = hn::And(y, hn::Set(d64, 0xffffffffu));
      return hn::Or(first, hn::Shl(hn::ShiftRight<32>(y), hn::And(m, hn::Set(d64, 0xffffffffu))));
    };
    alignas(16) uint8_t widths[16];
    hn::Store(bits, d8, widths);
    const hn::Rebind<uint8_t, decltype(d16)> d8_of_16;
    const auto low_bits = hn::PromoteTo(d16, hn::Load(d8_of_16, widths));
    const auto high_bits = hn::PromoteTo(d16, hn::Load(d8_of_16, widths + 8));
    hn::Store(pairs(hn::LoadU(d16, extras + i), low_bits), d64, words);
    hn::Store(pairs(hn::LoadU(d16, extras + i + 8), high_bits), d64, words + 2);
    // Stores eight bytes each time and advances by whole bytes only; up to seven bits stay pending.
    const auto append = [&](uint64_t word, uint32_t more) HWY_ATTR {
      pending |= word << held;
      StoreLE(bytes + byte, pending);
      held += more;
      byte += held / 8;
      pending >>= held / 8 * 8;
      held %= 8;
    };
    // Appending word by word is a dependency chain. Usually all four words fit into one, which
    // together with 7 pending bits has less than 64.
    if (ends[15] <= 56) {
      append((words[0] | words[1] << ends[3]) | (words[2] << ends[7] | words[3] << ends[11]),
             ends[15]);
      continue;
    }
    uint32_t before = 0;
    for (int k = 0; k < 4; ++k) {
      append(words[k], ends[4 * k + 3] - before);
      before = ends[4 * k + 3];
    }
  }
  StoreLE(bytes + byte, static_cast<uint8_t>(pending));
  return ref::PackResidualBits(symbols + i, extras + i, count - i, bytes, byte * 8 + held);
}

// Returns the magnitudes of buckets: a leading one, two bits from the bucket, and `width` raw bits,
// which begin at bits `at` of the bytes.
HWY_INLINE VI AddRawBits(VI bucket, VI width, const std::byte* from, VI at) {
  const DI d;
  const VI one = hn::Set(d, 1);
  const VI word =
      hn::GatherOffset(d, reinterpret_cast<const int32_t*>(from), hn::ShiftRight<3>(at));
  const VI shifted = hn::BitCast(
      d, hn::Shr(hn::BitCast(DU(), word), hn::BitCast(DU(), hn::And(at, hn::Set(d, 7)))));
  const VI extra = hn::And(shifted, hn::Sub(hn::Shl(one, width), one));
  const VI head = hn::Or(hn::And(bucket, hn::Set(d, 3)), hn::Set(d, 4));
  return hn::IfThenElse(hn::Lt(bucket, hn::Set(d, 16)), bucket,
                        hn::Or(hn::Shl(head, width), extra));
}

// Fast only where a gather is a single instruction.
bool ValuesT(const uint8_t* symbols, const uint16_t* expected, size_t count,
             const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) {
  const DI d;
  const DB d8;
  const auto zeros = static_cast<int>(grid.low_zeros);
  const VI top = hn::Set(d, 0x8000 >> zeros), zero = hn::Zero(d), one = hn::Set(d, 1);
  const VI all = hn::Sub(hn::Add(top, top), one);
  VI outside = zero;
  VB none = hn::Zero(d8);
  size_t i = 0;
  // A gather reads 4 bytes from where a value's bits begin, so the last values are left to the
  // reference.
  for (; i + 16 <= count && bits.at / 8 + 32 <= bits.size; i += 16) {
    const VB symbol = hn::LoadU(d8, symbols + i);
    none = hn::Max(none, symbol);
    const VB bucket = GetBucket(symbol), width = CountRawBits(bucket), ends = PrefixSums(width);
    alignas(16) uint8_t buckets[16], widths[16], begins[16], negatives[16];
    hn::Store(bucket, d8, buckets);
    hn::Store(width, d8, widths);
    // The bits of a value begin where those of all values before it end.
    hn::Store(hn::Sub(ends, width), d8, begins);
    hn::Store(hn::IfThenElse(hn::Lt(symbol, hn::Set(d8, kResidualMagnitudes)), hn::Zero(d8),
                             hn::Set(d8, 1)),
              d8, negatives);
    const uint32_t total = hn::ExtractLane(ends, 15);
    const std::byte* from = bits.bytes + bits.at / 8;
    const auto inside = static_cast<int32_t>(bits.at % 8);
    for (size_t part = 0; part < 16; part += kStep) {
      const auto wide = [&](const uint8_t* p)
                            HWY_ATTR { return hn::PromoteTo(d, hn::Load(D8(), p + part)); };
      const VI b = wide(buckets), n = wide(widths);
      VI z = b;
      if (total != 0) z = AddRawBits(b, n, from, hn::Add(wide(begins), hn::Set(d, inside)));
      const VI near = hn::ShiftRightSame(Load16(expected + i + part), zeros);
      const VI below = hn::IfThenElseZero(hn::Ne(hn::And(near, top), zero), one);
      // -1 where exactly one of symbol and expected value is negative
      const VI sign = hn::Neg(hn::Xor(wide(negatives), below));
      const VI distance = hn::Sub(hn::Xor(z, sign), sign);
      const VI place = hn::Add(ToPlace(near, top), distance);
      // An ordinal with bits beyond the type's range is negative or too large.
      outside = hn::Or(outside, hn::AndNot(all, place));
      const auto positive = hn::Ne(hn::And(place, top), zero);
      const VI value = hn::And(hn::Xor(place, hn::IfThenElse(positive, top, all)), all);
      Store16(hn::ShiftLeftSame(value, zeros), values + i + part);
    }
    bits.at += total;
    // The loop only collects errors; one test at the end refuses the chunk.
  }
  const bool good = hn::AllTrue(d, hn::Eq(outside, zero)) &&
                    hn::AllTrue(d8, hn::Lt(none, hn::Set(d8, 2 * kResidualMagnitudes - 1)));
  return ref::ResidualValues(symbols + i, expected + i, count - i, grid, bits, values + i) && good;
}

#endif

}  // namespace

void Classes(const uint16_t* expected, const int16_t* scales, size_t count, int32_t factor,
             bool bfloat, uint8_t* classes) {
  ClassesT(expected, scales, count, factor, bfloat, classes);
}
void Symbols(const uint16_t* values, const uint16_t* expected, size_t count,
             const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) {
  SymbolsT(values, expected, count, grid, symbols, extras);
}
size_t Pack(const uint8_t* symbols, const uint16_t* extras, size_t count, std::byte* bytes,
            size_t at) {
  return PackT(symbols, extras, count, bytes, at);
}
bool Values(const uint8_t* symbols, const uint16_t* expected, size_t count,
            const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) {
  return ValuesT(symbols, expected, count, grid, bits, values);
}

namespace {
using DF = hn::CappedTag<float, kErrorLanes>;
constexpr size_t kFloats = hn::MaxLanes(DF());

void ErrorsT(const float* values, const float* expected, size_t count, float* errors) {
  const DF d;
  const auto most = hn::Set(d, kMostError);
  size_t i = 0;
  for (; i + kFloats <= count; i += kFloats) {
    const auto error = hn::Abs(hn::Sub(hn::LoadU(d, values + i), hn::LoadU(d, expected + i)));
    hn::StoreU(hn::IfThenElseZero(hn::Le(error, most), error), d, errors + i);
  }
  ref::AbsoluteErrors(values + i, expected + i, count - i, errors + i);
}

float MeanT(const float* errors, const float* weights, size_t count) {
  constexpr size_t kRegisters = kErrorLanes / kFloats;
  const DF d;
  const auto most = hn::Set(d, kMostWeighted);
  hn::Vec<DF> sums[kRegisters];
  for (size_t r = 0; r < kRegisters; ++r) sums[r] = hn::Zero(d);
  size_t i = 0;
  for (; i + kErrorLanes <= count; i += kErrorLanes) {
    for (size_t r = 0; r < kRegisters; ++r) {
      const size_t at = i + r * kFloats;
      const auto ratio = hn::Mul(hn::LoadU(d, errors + at), hn::LoadU(d, weights + at));
      sums[r] = hn::Add(sums[r], hn::IfThenElse(hn::Lt(ratio, most), ratio, most));
    }
  }
  float lanes[kErrorLanes];
  for (size_t r = 0; r < kRegisters; ++r) hn::StoreU(sums[r], d, lanes + r * kFloats);
  for (; i < count; ++i) {
    const float ratio = errors[i] * weights[i];
    lanes[i % kErrorLanes] += ratio < kMostWeighted ? ratio : kMostWeighted;
  }
  return std::accumulate(lanes, lanes + kErrorLanes, 0.0f) / static_cast<float>(count);
}

void AddT(const float* errors, float weight, size_t count, float* sums) {
  const DF d;
  const auto w = hn::Set(d, weight);
  size_t i = 0;
  for (; i + kFloats <= count; i += kFloats) {
    const auto more = hn::Mul(hn::LoadU(d, errors + i), w);
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), more), d, sums + i);
  }
  ref::AddWeighted(errors + i, weight, count - i, sums + i);
}

}  // namespace

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Classes);
HWY_EXPORT(Symbols);
HWY_EXPORT(Pack);
HWY_EXPORT(Values);

void ClassifyResiduals(const uint16_t* expected, const int16_t* scales, size_t count,
                       int32_t factor, bool bfloat, uint8_t* classes) noexcept {
  HWY_DYNAMIC_DISPATCH(Classes)(expected, scales, count, factor, bfloat, classes);
}
void ResidualSymbols(const uint16_t* values, const uint16_t* expected, size_t count,
                     const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) noexcept {
  HWY_DYNAMIC_DISPATCH(Symbols)(values, expected, count, grid, symbols, extras);
}
size_t PackResidualBits(const uint8_t* symbols, const uint16_t* extras, size_t count,
                        std::byte* bytes, size_t at) noexcept {
  return HWY_DYNAMIC_DISPATCH(Pack)(symbols, extras, count, bytes, at);
}
bool ResidualValues(const uint8_t* symbols, const uint16_t* expected, size_t count,
                    const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) noexcept {
  return HWY_DYNAMIC_DISPATCH(Values)(symbols, expected, count, grid, bits, values);
}

namespace {

constexpr uint32_t kFirstRawBucket = 16;

uint32_t GetSymbolBucket(uint8_t symbol) {
  return symbol < kResidualMagnitudes ? symbol : symbol - (kResidualMagnitudes - 1);
}

int32_t ToPlace(uint32_t value, uint32_t low_zeros) {
  const uint32_t top = 0x8000u >> low_zeros;
  return static_cast<int32_t>(value ^ ((value & top) != 0 ? 2 * top - 1 : top));
}

}  // namespace

uint32_t ResidualBitCount(uint8_t symbol) noexcept {
  const uint32_t bucket = GetSymbolBucket(symbol);
  return bucket < kFirstRawBucket ? 0 : bucket / 4 - 2;
}

namespace ref {

void ClassifyResiduals(const uint16_t* expected, const int16_t* scales, size_t count,
                       int32_t factor, bool bfloat, uint8_t* classes) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const int32_t exponent = bfloat ? expected[i] >> 7 & 0xff : expected[i] >> 10 & 0x1f;
    const int32_t octaves = ((scales[i] + factor) >> 1) - std::max(exponent, 1);
    classes[i] =
        static_cast<uint8_t>(std::clamp(octaves, 0, static_cast<int32_t>(kResidualClasses) - 1));
  }
}

void ResidualSymbols(const uint16_t* values, const uint16_t* expected, size_t count,
                     const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) noexcept {
  const uint32_t top = 0x8000u >> grid.low_zeros;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t near = expected[i] >> grid.low_zeros;
    int32_t distance =
        ToPlace(values[i] >> grid.low_zeros, grid.low_zeros) - ToPlace(near, grid.low_zeros);
    if ((near & top) != 0) distance = -distance;
    const auto z = static_cast<uint32_t>(distance < 0 ? -distance : distance);
    uint32_t bucket = z, bits = 0;
    if (z >= kFirstRawBucket) {
      const auto octave = static_cast<uint32_t>(std::bit_width(z)) - 1;
      bits = octave - 2;
      bucket = 4 * octave + (z >> bits & 3);
    }
    extras[i] = static_cast<uint16_t>(z & ((1u << bits) - 1));
    symbols[i] = static_cast<uint8_t>(distance < 0 ? bucket + kResidualMagnitudes - 1 : bucket);
  }
}

size_t PackResidualBits(const uint8_t* symbols, const uint16_t* extras, size_t count,
                        std::byte* bytes, size_t at) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t placed = uint32_t{extras[i]} << at % 8;
    std::byte* to = bytes + at / 8;
    StoreLE(to, LoadLE<uint32_t>(to) | placed);
    at += ResidualBitCount(symbols[i]);
  }
  return at;
}

bool ResidualValues(const uint8_t* symbols, const uint16_t* expected, size_t count,
                    const ResidualGrid& grid, ResidualBits& bits, uint16_t* values) noexcept {
  const uint32_t top = 0x8000u >> grid.low_zeros, all = 2 * top - 1;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bucket = GetSymbolBucket(symbols[i]), width = ResidualBitCount(symbols[i]);
    if (bucket >= kResidualMagnitudes || bits.at + width > 8 * bits.size) return false;
    uint32_t z = bucket;
    if (width > 0) {
      uint32_t extra = 0;
      for (uint32_t b = 0; b < width; ++b, ++bits.at)
        extra |= (std::to_integer<uint32_t>(bits.bytes[bits.at / 8]) >> bits.at % 8 & 1) << b;
      z = (bucket % 4 + 4) << width | extra;
    }
    const uint32_t near = expected[i] >> grid.low_zeros;
    const bool negative = symbols[i] >= kResidualMagnitudes, below = (near & top) != 0;
    const int32_t place = ToPlace(near, grid.low_zeros) +
                          (negative != below ? -static_cast<int32_t>(z) : static_cast<int32_t>(z));
    if (place < 0 || place > static_cast<int32_t>(all)) return false;
    const auto p = static_cast<uint32_t>(place);
    values[i] = static_cast<uint16_t>((p ^ ((p & top) != 0 ? top : all)) << grid.low_zeros);
  }
  return true;
}

}  // namespace ref

HWY_EXPORT(ErrorsT);
HWY_EXPORT(MeanT);
HWY_EXPORT(AddT);

void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept {
  HWY_DYNAMIC_DISPATCH(ErrorsT)(values, expected, count, errors);
}
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(MeanT)(errors, weights, count);
}
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept {
  HWY_DYNAMIC_DISPATCH(AddT)(errors, weight, count, sums);
}

namespace ref {

void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const float error = std::fabs(values[i] - expected[i]);
    errors[i] = error <= kMostError ? error : 0.0f;
  }
}

float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept {
  float lanes[kErrorLanes] = {};
  for (size_t i = 0; i < count; ++i) {
    const float ratio = errors[i] * weights[i];
    lanes[i % kErrorLanes] += ratio < kMostWeighted ? ratio : kMostWeighted;
  }
  return std::accumulate(lanes, lanes + kErrorLanes, 0.0f) / static_cast<float>(count);
}

void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept {
  for (size_t i = 0; i < count; ++i) sums[i] += errors[i] * weight;
}

}  // namespace ref

}  // namespace kv
#endif  // HWY_ONCE
