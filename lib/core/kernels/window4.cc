// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The kernels of window4.h. The values are coded in two halves, the first into the lower and the
// second into the upper four bits of the same bytes, so that vectors of consecutive values need no
// interleaving. Escapes are looked for only in vectors that have one.

#include "lib/core/kernels/window4.h"

#include <algorithm>

#include "lib/core/base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/window4.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Encodes one half of the values; the second half goes into the upper nibbles of the same bytes, so
// that a vector needs no interleaving.
template <bool kHigh>
size_t EncodeHalf(const std::byte* values, size_t count, uint32_t base, uint8_t* fields,
                  uint8_t* nibbles, std::byte* escapes) {
  const hn::ScalableTag<uint16_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto first = hn::Set(d, static_cast<uint16_t>(base));
  const auto last = hn::Set(d, kWindow4Exponents - 1), none = hn::Set(d, kWindow4Exponents);
  std::byte* out = escapes;
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, reinterpret_cast<const uint16_t*>(values) + i);
    const auto number = hn::Sub(hn::And(hn::ShiftRight<7>(value), hn::Set(d, 0xff)), first);
    const auto field = hn::Or(hn::And(hn::ShiftRight<8>(value), hn::Set(d, 0x80)),
                              hn::And(value, hn::Set(d, 0x7f)));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, field)), d8, fields + i);
    // The unsigned difference of an exponent below the base wraps far above 15.
    auto nibble = hn::DemoteTo(d8, hn::BitCast(di, hn::Min(number, none)));
    if (kHigh) {
      const auto wide = hn::ShiftLeft<4>(hn::Min(number, none));
      nibble = hn::Or(hn::LoadU(d8, nibbles + i), hn::DemoteTo(d8, hn::BitCast(di, wide)));
    }
    hn::StoreU(nibble, d8, nibbles + i);
    if (HWY_LIKELY(hn::AllFalse(d, hn::Gt(number, last)))) continue;
    // Escapes are rare; a vector that has some is searched value by value.
    for (size_t lane = 0; lane < lanes; ++lane) {
      const uint32_t exponent = LoadLE<uint16_t>(values + 2 * (i + lane)) >> 7 & 0xff;
      if (exponent - base >= kWindow4Exponents) *out++ = static_cast<std::byte>(exponent);
    }
  }
  for (; i < count; ++i) {
    const uint32_t value = LoadLE<uint16_t>(values + 2 * i), exponent = value >> 7 & 0xff;
    const uint32_t number = std::min(exponent - base, kWindow4Exponents);
    fields[i] = static_cast<uint8_t>((value >> 8 & 0x80) | (value & 0x7f));
    nibbles[i] = static_cast<uint8_t>(kHigh ? nibbles[i] | number << 4 : number);
    if (number == kWindow4Exponents) *out++ = static_cast<std::byte>(exponent);
  }
  return static_cast<size_t>(out - escapes);
}

size_t Encode(const std::byte* values, size_t count, uint32_t base, std::byte* fields,
              std::byte* nibbles, std::byte* escapes) {
  const size_t half = Window4NibbleBytes(count);
  auto* field = reinterpret_cast<uint8_t*>(fields);
  auto* nibble = reinterpret_cast<uint8_t*>(nibbles);
  const size_t low = EncodeHalf<false>(values, half, base, field, nibble, escapes);
  return low + EncodeHalf<true>(values + 2 * half, count - half, base, field + half, nibble,
                                escapes + low);
}

// Returns the number of escapes used, or SIZE_MAX if there are too few.
template <bool kHigh>
size_t DecodeHalf(const uint8_t* fields, const uint8_t* nibbles, size_t count, uint32_t base,
                  const std::byte* escapes, size_t escape_count, std::byte* values) {
  const hn::ScalableTag<uint16_t> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto first = hn::Set(d, static_cast<uint16_t>(base));
  const auto none = hn::Set(d, kWindow4Exponents);
  size_t used = 0;
  // Replaces the exponent of an escaped value; returns false if the list has ended.
  const auto patch = [&](size_t i) {
    const uint32_t number = kHigh ? nibbles[i] >> 4 : nibbles[i] & 15u;
    if (number != kWindow4Exponents) return true;
    if (used == escape_count) return false;
    const uint32_t value = LoadLE<uint16_t>(values + 2 * i) & 0x807fu;
    StoreLE(values + 2 * i,
            static_cast<uint16_t>(value | static_cast<uint32_t>(escapes[used++]) << 7));
    return true;
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto field = hn::PromoteTo(d, hn::LoadU(d8, fields + i));
    const auto byte = hn::PromoteTo(d, hn::LoadU(d8, nibbles + i));
    const auto number = kHigh ? hn::ShiftRight<4>(byte) : hn::And(byte, none);
    // An escape's sum may carry into the sign, which the mask removes.
    const auto exponent = hn::And(hn::ShiftLeft<7>(hn::Add(number, first)), hn::Set(d, 0x7f80));
    const auto sign = hn::ShiftLeft<8>(hn::And(field, hn::Set(d, 0x80)));
    const auto value = hn::Or(hn::Or(sign, exponent), hn::And(field, hn::Set(d, 0x7f)));
    hn::StoreU(value, d, reinterpret_cast<uint16_t*>(values) + i);
    if (HWY_LIKELY(hn::AllFalse(d, hn::Eq(number, none)))) continue;
    for (size_t lane = 0; lane < lanes; ++lane) {
      if (!patch(i + lane)) return SIZE_MAX;
    }
  }
  for (; i < count; ++i) {
    const uint32_t number = kHigh ? nibbles[i] >> 4 : nibbles[i] & 15u;
    const uint32_t value =
        (fields[i] & 0x80u) << 8 | ((number + base) & 0xff) << 7 | (fields[i] & 0x7fu);
    StoreLE(values + 2 * i, static_cast<uint16_t>(value));
    if (!patch(i)) return SIZE_MAX;
  }
  return used;
}

size_t Decode(const std::byte* fields, const std::byte* nibbles, size_t count, uint32_t base,
              const std::byte* escapes, size_t escape_count, std::byte* values) {
  const size_t half = Window4NibbleBytes(count);
  const auto* field = reinterpret_cast<const uint8_t*>(fields);
  const auto* nibble = reinterpret_cast<const uint8_t*>(nibbles);
  const size_t low = DecodeHalf<false>(field, nibble, half, base, escapes, escape_count, values);
  if (low == SIZE_MAX) return SIZE_MAX;
  const size_t high = DecodeHalf<true>(field + half, nibble, count - half, base, escapes + low,
                                       escape_count - low, values + 2 * half);
  return high == SIZE_MAX ? SIZE_MAX : low + high;
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Encode);
HWY_EXPORT(Decode);

size_t Window4Encode(const std::byte* values, size_t count, uint32_t base, std::byte* fields,
                     std::byte* nibbles, std::byte* escapes) noexcept {
  return HWY_DYNAMIC_DISPATCH(Encode)(values, count, base, fields, nibbles, escapes);
}

bool Window4Decode(const std::byte* fields, const std::byte* nibbles, size_t count, uint32_t base,
                   const std::byte* escapes, size_t escape_count, std::byte* values) noexcept {
  return HWY_DYNAMIC_DISPATCH(Decode)(fields, nibbles, count, base, escapes, escape_count,
                                      values) == escape_count;
}

namespace ref {

size_t Window4Encode(const std::byte* values, size_t count, uint32_t base, std::byte* fields,
                     std::byte* nibbles, std::byte* escapes) noexcept {
  const size_t half = Window4NibbleBytes(count);
  std::fill_n(nibbles, half, std::byte{0});
  size_t used = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t value = LoadLE<uint16_t>(values + 2 * i), exponent = value >> 7 & 0xff;
    const uint32_t number = std::min(exponent - base, kWindow4Exponents);
    fields[i] = static_cast<std::byte>((value >> 8 & 0x80) | (value & 0x7f));
    nibbles[i % half] |= static_cast<std::byte>(number << (i < half ? 0 : 4));
    if (number == kWindow4Exponents) escapes[used++] = static_cast<std::byte>(exponent);
  }
  return used;
}

bool Window4Decode(const std::byte* fields, const std::byte* nibbles, size_t count, uint32_t base,
                   const std::byte* escapes, size_t escape_count, std::byte* values) noexcept {
  const size_t half = Window4NibbleBytes(count);
  size_t used = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto field = static_cast<uint32_t>(fields[i]);
    const uint32_t number = static_cast<uint32_t>(nibbles[i % half]) >> (i < half ? 0 : 4) & 15;
    uint32_t exponent = number + base;
    if (number == kWindow4Exponents) {
      if (used == escape_count) return false;
      exponent = static_cast<uint32_t>(escapes[used++]);
    }
    StoreLE(values + 2 * i,
            static_cast<uint16_t>((field & 0x80) << 8 | exponent << 7 | (field & 0x7f)));
  }
  return used == escape_count;
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
