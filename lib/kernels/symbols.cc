// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/kernels/symbols.h"

#include <algorithm>

#include "lib/base/bytes.h"

// Plain loops: each is one load, a few shifts and one store per value, which compilers vectorise.
namespace kv {
namespace {

uint16_t Value(const std::byte* values, size_t i) { return LoadLE<uint16_t>(values + 2 * i); }

size_t Padded(size_t count) { return (count + 7) / 8 * 8; }

template <uint32_t kWidth>
void PackPlane(const std::byte* values, size_t count, uint32_t shift, std::byte* plane) {
  constexpr size_t kShare = 8 / kWidth;
  const size_t segment = Padded(count) / kShare;
  const auto field = [&](size_t i) -> uint32_t {
    return (static_cast<uint32_t>(Value(values, i)) >> shift) & ((1u << kWidth) - 1);
  };
  // The last segment may be short of values: those bits stay 0.
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

template <uint32_t kWidth>
void UnpackPlane(const std::byte* plane, size_t count, uint32_t shift, std::byte* values) {
  constexpr size_t kShare = 8 / kWidth;
  const size_t segment = Padded(count) / kShare;
  for (size_t g = 0; g < kShare && g * segment < count; ++g) {
    const size_t end = std::min(segment, count - g * segment);
    std::byte* out = values + 2 * g * segment;
    for (size_t i = 0; i < end; ++i) {
      const uint32_t bits =
          (static_cast<uint32_t>(plane[i]) >> (g * kWidth)) & ((1u << kWidth) - 1);
      StoreLE(out + 2 * i, static_cast<uint16_t>(LoadLE<uint16_t>(out + 2 * i) | bits << shift));
    }
  }
}

}  // namespace

void ToSymbols(const std::byte* values, size_t count, const SymbolShape& shape,
               uint8_t* symbols) noexcept {
  const uint32_t bits = shape.symbol_bits;
  if (!shape.bfloat) {
    for (size_t i = 0; i < count; ++i)
      symbols[i] = static_cast<uint8_t>(Value(values, i) >> (16 - bits));
    return;
  }
  const uint32_t mantissa_bits = bits - 6, base = shape.exponent_base;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t value = Value(values, i);
    const uint32_t exponent = (value >> 7) & 0xff;
    const uint32_t field =
        exponent - base <= 31 ? exponent - base : 0;  // below the base wraps far above 31
    const uint32_t top = (value & 0x7f) >> (7 - mantissa_bits);
    symbols[i] = static_cast<uint8_t>((value >> 15) << (bits - 1) | field << mantissa_bits | top);
  }
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

bool FromSymbols(const uint8_t* symbols, size_t count, const SymbolShape& shape,
                 const uint8_t* escapes, size_t escape_count, const std::byte* planes,
                 std::byte* values) noexcept {
  const uint32_t bits = shape.symbol_bits, raw_bits = shape.raw_bits();
  size_t used = 0;
  if (!shape.bfloat) {
    for (size_t i = 0; i < count; ++i) {
      StoreLE(values + 2 * i, static_cast<uint16_t>(uint32_t{symbols[i]} << raw_bits));
    }
  } else {
    const uint32_t mantissa_bits = bits - 6;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t symbol = symbols[i];
      const uint32_t field = (symbol >> mantissa_bits) & 31;
      const uint32_t top = symbol & ((1u << mantissa_bits) - 1);
      const uint32_t value =
          (symbol >> (bits - 1)) << 15 | (field + shape.exponent_base) << 7 | top << raw_bits;
      StoreLE(values + 2 * i, static_cast<uint16_t>(value));
    }
    if (shape.has_escapes()) {
      const uint32_t field_mask = 31u << mantissa_bits;
      for (size_t i = 0; i < count; ++i) {
        if ((symbols[i] & field_mask) != 0) continue;
        if (used == escape_count) return false;
        const uint32_t value = LoadLE<uint16_t>(values + 2 * i) & 0x807fu;
        StoreLE(values + 2 * i, static_cast<uint16_t>(value | uint32_t{escapes[used++]} << 7));
      }
    }
  }
  if (used != escape_count) return false;

  uint32_t shift = 0;
  const size_t eighth = Padded(count) / 8;
  if (raw_bits & 8) {
    UnpackPlane<8>(planes, count, shift, values);
    planes += 8 * eighth;
    shift += 8;
  }
  if (raw_bits & 4) {
    UnpackPlane<4>(planes, count, shift, values);
    planes += 4 * eighth;
    shift += 4;
  }
  if (raw_bits & 2) {
    UnpackPlane<2>(planes, count, shift, values);
    planes += 2 * eighth;
    shift += 2;
  }
  if (raw_bits & 1) UnpackPlane<1>(planes, count, shift, values);
  return true;
}

}  // namespace kv
