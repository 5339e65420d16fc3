// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The kernels of symbols.h. Values become symbols by shifts and masks. Raw bits are stored in
// planes of 8, 4, 2 and 1 bits, in which a byte holds values that lie far apart: a vector of
// consecutive values then finds its bits in consecutive bytes, at one and the same shift. Escaped
// exponents are rare, and put in afterwards.

#include "lib/core/kernels/symbols.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "lib/core/base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/symbols.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D16 = hn::ScalableTag<uint16_t>;
using D8 = hn::Rebind<uint8_t, D16>;

// Returns the bits of the value that a symbol determines. The number of raw bits also tells the
// type: f16 has 8 to 10, bf16 5 to 7. Shifts are by constants, because those by a variable are slow
// on vectors.
template <uint32_t kRawBits, class V>
HWY_INLINE V ToValueBits(V symbol, V base) {
  const D16 d;
  const V shifted = hn::ShiftLeft<kRawBits>(symbol);
  if constexpr (kRawBits >= 8) return shifted;
  // In bf16, field and mantissa bits are adjacent; only the sign moves separately.
  const V low = hn::Add(hn::And(shifted, hn::Set(d, 0xfff)), base);
  return hn::Or(low, hn::And(hn::ShiftLeft<3 + kRawBits % 8>(symbol), hn::Set(d, 0x8000)));
}

template <uint32_t kRawBits>
uint32_t ToScalarValueBits(uint32_t symbol, uint32_t base) {
  const uint32_t shifted = symbol << kRawBits;
  if (kRawBits >= 8) return shifted;
  return ((shifted & 0xfff) + base) | (symbol << (3 + kRawBits % 8) & 0x8000);
}

// Calls f with the number of raw bits as a compile-time constant.
template <class F>
void WithRawBits(uint32_t raw_bits, F f) {
  switch (raw_bits) {
    case 5:
      return f(std::integral_constant<uint32_t, 5>());
    case 6:
      return f(std::integral_constant<uint32_t, 6>());
    case 7:
      return f(std::integral_constant<uint32_t, 7>());
    case 8:
      return f(std::integral_constant<uint32_t, 8>());
    case 9:
      return f(std::integral_constant<uint32_t, 9>());
    default:
      return f(std::integral_constant<uint32_t, 10>());
  }
}

void To(const std::byte* values, size_t count, const SymbolShape& shape, uint8_t* symbols) {
  const D16 d;
  const D8 d8;
  const auto store = [&](auto symbol, size_t i) HWY_ATTR {
    const hn::RebindToSigned<D16> di;
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, symbol)), d8, symbols + i);
  };
  const auto* words = reinterpret_cast<const uint16_t*>(values);
  const int bits = static_cast<int>(shape.symbol_bits);
  size_t i = 0;
  if (shape.form.byte_shift != 0) {
    const int shift = static_cast<int>(shape.form.byte_shift);
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
      const auto value = hn::LoadU(d, words + i);
      const auto sign = hn::And(hn::ShiftRight<8>(value), hn::Set(d, 0x80));
      store(hn::Or(sign, hn::And(hn::ShiftRightSame(value, shift), hn::Set(d, 0x7f))), i);
    }
  } else if (!shape.form.bfloat) {
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
      store(hn::ShiftRightSame(hn::LoadU(d, words + i), 16 - bits), i);
  } else {
    const auto base = hn::Set(d, static_cast<uint16_t>(shape.exponent_base));
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
      const auto value = hn::LoadU(d, words + i);
      // The unsigned difference of an exponent below the base wraps far above 31.
      const auto field = hn::Sub(hn::And(hn::ShiftRight<7>(value), hn::Set(d, 0xff)), base);
      const auto kept = hn::IfThenZeroElse(hn::Gt(field, hn::Set(d, 31)), field);
      const auto sign = hn::ShiftLeftSame(hn::ShiftRight<15>(value), bits - 1);
      const auto top = hn::ShiftRightSame(hn::And(value, hn::Set(d, 0x7f)), 13 - bits);
      store(hn::Or(hn::Or(sign, hn::ShiftLeftSame(kept, bits - 6)), top), i);
    }
  }
  ref::ToSymbols(values + 2 * i, count - i, shape, symbols + i);
}

uint32_t Largest(const std::byte* values, size_t count, bool bfloat) {
  const D16 d;
  const auto* words = reinterpret_cast<const uint16_t*>(values);
  const uint32_t infinity = bfloat ? 0x7f80 : 0x7c00;
  auto most = hn::Zero(d);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto magnitude = hn::And(hn::LoadU(d, words + i), hn::Set(d, 0x7fff));
    const auto finite = hn::Lt(magnitude, hn::Set(d, static_cast<uint16_t>(infinity)));
    most = hn::Max(most, hn::IfThenElseZero(finite, magnitude));
  }
  // Lanes are reduced at the end, once.
  uint16_t of_lanes[HWY_MAX_BYTES / 2];
  hn::StoreU(most, d, of_lanes);
  uint32_t largest = *std::max_element(of_lanes, of_lanes + hn::Lanes(d));
  for (; i < count; ++i) {
    const uint32_t magnitude = LoadLE<uint16_t>(values + 2 * i) & 0x7fffu;
    if (magnitude < infinity) largest = std::max(largest, magnitude);
  }
  return largest;
}

// Calls f with the index of each escape, a symbol whose exponent field is 0, in order, until f
// returns false; returns false in that case. Escapes are rare, so most vectors are skipped by one
// test.
template <class F>
HWY_INLINE bool ForEachEscape(const uint8_t* symbols, size_t count, uint32_t field_mask, F f) {
  const hn::ScalableTag<uint8_t> d;
  const auto mask = hn::Set(d, static_cast<uint8_t>(field_mask));
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto escapes = hn::Eq(hn::And(hn::LoadU(d, symbols + i), mask), hn::Zero(d));
    if (hn::AllFalse(d, escapes)) continue;
    std::byte bits[HWY_MAX_BYTES / 8 + 8] = {};
    hn::StoreMaskBits(d, escapes, reinterpret_cast<uint8_t*>(bits));
    for (size_t part = 0; part < hn::Lanes(d); part += 64) {
      // Visits the set bits of the mask from the lowest on.
      for (auto word = LoadLE<uint64_t>(bits + part / 8); word != 0; word &= word - 1) {
        if (!f(i + part + static_cast<size_t>(std::countr_zero(word)))) return false;
      }
    }
  }
  for (; i < count; ++i) {
    if ((symbols[i] & field_mask) == 0 && !f(i)) return false;
  }
  return true;
}

bool Restore(const uint8_t* symbols, size_t count, const SymbolShape& shape, const uint8_t* escapes,
             size_t escape_count, size_t& used, std::byte* values) {
  // Puts the listed exponents back into the values that were joined with exponent 0.
  return ForEachEscape(symbols, count, shape.field_mask(), [&](size_t i) {
    if (used == escape_count) return false;
    const uint32_t value = LoadLE<uint16_t>(values + 2 * i) & 0x807fu;
    StoreLE(values + 2 * i, static_cast<uint16_t>(value | uint32_t{escapes[used++]} << 7));
    return true;
  });
}

size_t List(const std::byte* values, const uint8_t* symbols, size_t count, const SymbolShape& shape,
            uint8_t* escapes, size_t room) {
  size_t used = 0;
  ForEachEscape(symbols, count, shape.field_mask(), [&](size_t i) {
    if (used < room) escapes[used] = static_cast<uint8_t>(LoadLE<uint16_t>(values + 2 * i) >> 7);
    ++used;
    return true;
  });
  return used;
}

// Joins symbols and planes, an eighth of the values at a time: within an eighth the shift that
// selects a value's bits in each plane is constant.
template <uint32_t kRawBits, bool kSymbols>
void JoinAs(const uint8_t* symbols, size_t count, uint32_t exponent_base, const std::byte* planes,
            std::byte* values) {
  const D16 d;
  const D8 d8;
  const size_t eighth = (count + 7) / 8;
  const auto* plane8 = reinterpret_cast<const uint8_t*>(planes);
  // A plane of w bits takes w eighths of the padded number of values; planes that do not exist take
  // none.
  const uint8_t* plane4 = plane8 + (kRawBits & 8) * eighth;
  const uint8_t* plane2 = plane4 + (kRawBits & 4) * eighth;
  const uint8_t* plane1 = plane2 + (kRawBits & 2) * eighth;
  constexpr int kShift4 = kRawBits & 8, kShift2 = kShift4 + (kRawBits & 4),
                kShift1 = kShift2 + (kRawBits & 2);
  const uint32_t base = exponent_base << 7;
  const auto bases = hn::Set(d, static_cast<uint16_t>(base));
  for (size_t part = 0; part < 8; ++part) {
    const size_t begin = std::min(count, part * eighth);
    const size_t end = std::min(count, begin + eighth);
    // Value i finds its bits in byte i - origin of a plane, shifted right.
    const size_t origin4 = part / 4 * 4 * eighth, origin2 = part / 2 * 2 * eighth,
                 origin1 = part * eighth;
    const int right4 = 4 * static_cast<int>(part / 4), right2 = 2 * static_cast<int>(part / 2),
              right1 = static_cast<int>(part);
    size_t i = begin;
    for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
      const auto load = [&](const uint8_t* from)
                            HWY_ATTR { return hn::PromoteTo(d, hn::LoadU(d8, from)); };
      auto value = kSymbols ? ToValueBits<kRawBits>(load(symbols + i), bases) : hn::Zero(d);
      if constexpr ((kRawBits & 8) != 0) value = hn::Or(value, load(plane8 + i));
      if constexpr ((kRawBits & 4) != 0) {
        const auto bits = hn::ShiftRightSame(load(plane4 + i - origin4), right4);
        value = hn::Or(value, hn::ShiftLeft<kShift4>(hn::And(bits, hn::Set(d, 15))));
      }
      if constexpr ((kRawBits & 2) != 0) {
        const auto bits = hn::ShiftRightSame(load(plane2 + i - origin2), right2);
        value = hn::Or(value, hn::ShiftLeft<kShift2>(hn::And(bits, hn::Set(d, 3))));
      }
      if constexpr ((kRawBits & 1) != 0) {
        const auto bits = hn::ShiftRightSame(load(plane1 + i - origin1), right1);
        value = hn::Or(value, hn::ShiftLeft<kShift1>(hn::And(bits, hn::Set(d, 1))));
      }
      hn::StoreU(value, d, reinterpret_cast<uint16_t*>(values) + i);
    }
    for (; i < end; ++i) {
      uint32_t value = kSymbols ? ToScalarValueBits<kRawBits>(symbols[i], base) : 0;
      if (kRawBits & 8) value |= plane8[i];
      if (kRawBits & 4) value |= (plane4[i - origin4] >> right4 & 15u) << kShift4;
      if (kRawBits & 2) value |= (plane2[i - origin2] >> right2 & 3u) << kShift2;
      if (kRawBits & 1) value |= (plane1[i - origin1] >> right1 & 1u) << kShift1;
      StoreLE(values + 2 * i, static_cast<uint16_t>(value));
    }
  }
}

// Widens 8-bit floats, which are their own symbols, to f16.
void WidenBytes(const uint8_t* symbols, size_t count, uint32_t shift, std::byte* values) {
  const D16 d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto symbol = hn::PromoteTo(d, hn::LoadU(D8(), symbols + i));
    const auto sign = hn::ShiftLeft<8>(hn::And(symbol, hn::Set(d, 0x80)));
    const auto magnitude =
        hn::ShiftLeftSame(hn::And(symbol, hn::Set(d, 0x7f)), static_cast<int>(shift));
    hn::StoreU(hn::Or(sign, magnitude), d, reinterpret_cast<uint16_t*>(values) + i);
  }
  for (; i < count; ++i) {
    const uint32_t value = (symbols[i] & 0x80u) << 8 | (symbols[i] & 0x7fu) << shift;
    StoreLE(values + 2 * i, static_cast<uint16_t>(value));
  }
}

void Join(const uint8_t* symbols, size_t count, const SymbolShape& shape, const std::byte* planes,
          std::byte* values) {
  if (shape.form.byte_shift != 0) return WidenBytes(symbols, count, shape.form.byte_shift, values);
  WithRawBits(shape.raw_bits(), [&](auto raw_bits) {
    const auto join = symbols == nullptr ? JoinAs<raw_bits, false> : JoinAs<raw_bits, true>;
    join(symbols, count, shape.exponent_base, planes, values);
  });
}

template <uint32_t kRawBits>
void AddAs(const uint8_t* symbols, size_t count, uint32_t exponent_base, std::byte* values) {
  const D16 d;
  const uint32_t base = exponent_base << 7;
  const auto bases = hn::Set(d, static_cast<uint16_t>(base));
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    auto* at = reinterpret_cast<uint16_t*>(values) + i;
    const auto symbol = hn::PromoteTo(d, hn::LoadU(D8(), symbols + i));
    hn::StoreU(hn::Or(hn::LoadU(d, at), ToValueBits<kRawBits>(symbol, bases)), d, at);
  }
  for (; i < count; ++i) {
    const uint32_t bits = ToScalarValueBits<kRawBits>(symbols[i], base);
    StoreLE(values + 2 * i, static_cast<uint16_t>(LoadLE<uint16_t>(values + 2 * i) | bits));
  }
}

void Add(const uint8_t* symbols, size_t count, const SymbolShape& shape, std::byte* values) {
  if (shape.form.byte_shift != 0) return WidenBytes(symbols, count, shape.form.byte_shift, values);
  WithRawBits(shape.raw_bits(),
              [&](auto raw_bits) { AddAs<raw_bits>(symbols, count, shape.exponent_base, values); });
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(To);
HWY_EXPORT(Largest);
HWY_EXPORT(Restore);
HWY_EXPORT(List);
HWY_EXPORT(Join);
HWY_EXPORT(Add);

namespace {

uint16_t Value(const std::byte* values, size_t i) { return LoadLE<uint16_t>(values + 2 * i); }

size_t Padded(size_t count) { return (count + 7) / 8 * 8; }

template <uint32_t kWidth>
// Packs a field of kWidth bits of each value. A byte holds values that are a whole segment apart,
// not neighbours, so that vectors of values unpack without shuffles.
void PackPlane(const std::byte* values, size_t count, uint32_t shift, std::byte* plane) {
  constexpr size_t kShare = 8 / kWidth;
  const size_t segment = Padded(count) / kShare;
  const auto field = [&](size_t i) -> uint32_t {
    return (static_cast<uint32_t>(Value(values, i)) >> shift) & ((1u << kWidth) - 1);
  };
  // The last segment may lack values; their bits stay 0.
  const size_t full = count - segment * (kShare - 1) > count ? 0 : count - segment * (kShare - 1);
  for (size_t i = 0; i < full; ++i) {
    uint32_t byte = 0;
    for (size_t g = 0; g < kShare; ++g) byte |= field(i + g * segment) << (g * kWidth);
    plane[i] = static_cast<std::byte>(byte);
  }
  for (size_t i = full; i < segment; ++i) {
    uint32_t byte = 0;
    for (size_t g = 0; g < kShare && i + g * segment < count; ++g)
      byte |= field(i + g * segment) << (g * kWidth);
    plane[i] = static_cast<std::byte>(byte);
  }
}

}  // namespace

void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept {
  HWY_DYNAMIC_DISPATCH(To)(values, count, shape, symbols);
}

uint32_t LargestFinite(const std::byte* values, size_t count, bool bfloat) noexcept {
  return HWY_DYNAMIC_DISPATCH(Largest)(values, count, bfloat);
}

size_t RawPlaneBytes(size_t count, uint32_t raw_bits) noexcept {
  return Padded(count) / 8 * raw_bits;
}

void PackRawBits(const std::byte* values, size_t count, uint32_t raw_bits,
                 std::byte* planes) noexcept {
  uint32_t shift = 0;
  const size_t eighth = Padded(count) / 8;
  if (raw_bits & 8) {
    for (size_t i = 0; i < count; ++i) planes[i] = values[2 * i];
    std::fill(planes + count, planes + Padded(count), std::byte{0});
    planes += 8 * eighth;
    shift += 8;
  }
  if (raw_bits & 4) {
    PackPlane<4>(values, count, shift, planes);
    planes += 4 * eighth;
    shift += 4;
  }
  if (raw_bits & 2) {
    PackPlane<2>(values, count, shift, planes);
    planes += 2 * eighth;
    shift += 2;
  }
  if (raw_bits & 1) PackPlane<1>(values, count, shift, planes);
}

void FlipRawBits(size_t count, uint32_t raw_bits, size_t at, uint8_t flipped,
                 std::byte* values) noexcept {
  // Planes are ordered from the widest on, and only those set in raw_bits exist.
  uint32_t shift = 0, width = 8;
  // Finds the plane that byte `at` belongs to.
  for (; width > 1; width /= 2) {
    if ((raw_bits & width) == 0) continue;
    if (at < Padded(count) / 8 * width) break;
    at -= Padded(count) / 8 * width;
    shift += width;
  }
  const size_t segment = Padded(count) / 8 * width;
  for (uint32_t g = 0; g < 8 / width && at + g * segment < count; ++g) {
    const uint32_t bits = uint32_t{flipped} >> (g * width) & ((1u << width) - 1);
    const size_t i = at + g * segment;
    StoreLE(values + 2 * i, static_cast<uint16_t>(Value(values, i) ^ bits << shift));
  }
}

bool FromSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                 const uint8_t* escapes, size_t escape_count, const std::byte* planes,
                 std::byte* values) noexcept {
  HWY_DYNAMIC_DISPATCH(Join)(symbols, count, shape, planes, values);
  size_t used = 0;
  return AddEscapes(symbols, count, shape, escapes, escape_count, used, values) &&
         used == escape_count;
}

void UnpackRawBits(const std::byte* planes, size_t count, uint32_t raw_bits,
                   std::byte* values) noexcept {
  if (raw_bits == 0) return;
  // Raw bits unpack alike for all types, so this uses an f16 whose symbol takes all other bits.
  const SymbolShape shape{.symbol_bits = 16 - raw_bits};
  HWY_DYNAMIC_DISPATCH(Join)(nullptr, count, shape, planes, values);
}

void AddSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                std::byte* values) noexcept {
  HWY_DYNAMIC_DISPATCH(Add)(symbols, count, shape, values);
}

bool AddEscapes(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                const uint8_t* escapes, size_t escape_count, size_t& used,
                std::byte* values) noexcept {
  if (!shape.has_escapes()) return true;
  return HWY_DYNAMIC_DISPATCH(Restore)(symbols, count, shape, escapes, escape_count, used, values);
}

size_t ListEscapes(const std::byte* values, const uint8_t* symbols, size_t count,
                   const SymbolShape& shape, uint8_t* escapes, size_t room) noexcept {
  if (!shape.has_escapes()) return 0;
  return HWY_DYNAMIC_DISPATCH(List)(values, symbols, count, shape, escapes, room);
}

namespace ref {

void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept {
  const uint32_t bits = shape.symbol_bits;
  if (shape.form.byte_shift != 0) {
    for (size_t i = 0; i < count; ++i) {
      const uint32_t value = Value(values, i);
      symbols[i] =
          static_cast<uint8_t>((value >> 8 & 0x80) | (value >> shape.form.byte_shift & 0x7f));
    }
    return;
  }
  if (!shape.form.bfloat) {
    for (size_t i = 0; i < count; ++i)
      symbols[i] = static_cast<uint8_t>(Value(values, i) >> (16 - bits));
    return;
  }
  const uint32_t mantissa_bits = bits - 6, base = shape.exponent_base;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t value = Value(values, i);
    const uint32_t exponent = (value >> 7) & 0xff;
    const uint32_t field =
        // an exponent below the base wraps far above 31
        exponent - base <= 31 ? exponent - base : 0;
    const uint32_t top = (value & 0x7f) >> (7 - mantissa_bits);
    symbols[i] = static_cast<uint8_t>((value >> 15) << (bits - 1) | field << mantissa_bits | top);
  }
}

bool AddEscapes(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                const uint8_t* escapes, size_t escape_count, size_t& used,
                std::byte* values) noexcept {
  for (size_t i = 0; i < count && shape.has_escapes(); ++i) {
    if ((symbols[i] & shape.field_mask()) != 0) continue;
    if (used == escape_count) return false;
    const uint32_t exponent = escapes[used++];
    StoreLE(values + 2 * i, static_cast<uint16_t>((Value(values, i) & 0x807f) | exponent << 7));
  }
  return true;
}

size_t ListEscapes(const std::byte* values, const uint8_t* symbols, size_t count,
                   const SymbolShape& shape, uint8_t* escapes, size_t room) noexcept {
  size_t used = 0;
  for (size_t i = 0; i < count && shape.has_escapes(); ++i) {
    if ((symbols[i] & shape.field_mask()) != 0) continue;
    if (used < room) escapes[used] = static_cast<uint8_t>(Value(values, i) >> 7);
    ++used;
  }
  return used;
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
