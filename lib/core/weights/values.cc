// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/weights/values.h"

#include <fmt/format.h>

#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"

namespace kv {
namespace {

struct AsF16 {
  uint16_t bits;
};
struct AsBF16 {
  uint16_t bits;
};

// Every type that weights come in, through float.
float Widen(AsF16 value) { return F16ToF32(value.bits); }
float Widen(AsBF16 value) { return BF16ToF32(value.bits); }
template <typename T>
float Widen(T value) {
  return static_cast<float>(value);
}

// As torch rounds a float that came from a value of type From.
template <typename From>
void Narrow(float value, AsF16& out) {
  constexpr uint16_t kNan = 0x7e00, kSign = 0x8000;
  out.bits = F32ToF16(value);
  if (std::isnan(value)) out.bits = std::signbit(value) ? kNan | kSign : kNan;
}
template <typename From>
void Narrow(float value, AsBF16& out) {
  constexpr uint16_t kNan = std::is_same_v<From, AsF16> ? 0x7fc0 : 0xffff;
  out.bits = std::isnan(value) ? kNan : F32ToBF16(value);
}
template <typename From>
void Narrow(float value, float& out) {
  out = value;
}

template <typename From, typename To>
void Round(const std::byte* from, uint64_t count, std::byte* to, RoundingCounts& counts) {
  for (uint64_t i = 0; i < count; ++i) {
    From source;
    std::memcpy(&source, from + i * sizeof(From), sizeof(From));
    To target;
    Narrow<From>(Widen(source), target);
    std::memcpy(to + i * sizeof(To), &target, sizeof(To));

    double before;
    if constexpr (std::is_arithmetic_v<From>) {
      before = static_cast<double>(source);
    } else {
      before = Widen(source);
    }
    const double after = Widen(target);
    counts.nan += std::isnan(after);
    counts.infinite += std::isinf(before);
    counts.overflowed += std::isinf(after) && std::isfinite(before);
    counts.flushed += after == 0 && before != 0;
    counts.changed += before != after && !std::isnan(before);
  }
  counts.values += count;
}

template <typename From>
void RoundTo(DType to, const std::byte* from, uint64_t count, std::byte* out,
             RoundingCounts& counts) {
  switch (to) {
    case DType::kF32:
      return Round<From, float>(from, count, out, counts);
    case DType::kF16:
      return Round<From, AsF16>(from, count, out, counts);
    case DType::kBF16:
      return Round<From, AsBF16>(from, count, out, counts);
    default:
      throw Error(Finding::kUnsupportedDtype,
                  fmt::format("weights cannot be written as {}", Name(to)));
  }
}

}  // namespace

RoundingCounts& RoundingCounts::operator+=(const RoundingCounts& other) {
  values += other.values;
  nan += other.nan;
  infinite += other.infinite;
  overflowed += other.overflowed;
  flushed += other.flushed;
  changed += other.changed;
  return *this;
}

Bytes RoundValues(const TensorView& view, DType to, RoundingCounts* counts) {
  RoundingCounts ignored;
  RoundingCounts& tally = counts == nullptr ? ignored : *counts;
  Bytes values = CopyContiguous(view);
  const uint64_t count = view.elements();
  Bytes out(BytesOf(to, count));
  const auto round = [&]<typename From>(From) {
    RoundTo<From>(to, values.data(), count, out.data(), tally);
  };
  switch (view.dtype) {
    case DType::kF32:
      round(float{});
      break;
    case DType::kF16:
      round(AsF16{});
      break;
    case DType::kBF16:
      round(AsBF16{});
      break;
    case DType::kF64:
      round(double{});
      break;
    case DType::kI8:
      round(int8_t{});
      break;
    case DType::kBool:
    case DType::kU8:
      round(uint8_t{});
      break;
    case DType::kI16:
      round(int16_t{});
      break;
    case DType::kU16:
      round(uint16_t{});
      break;
    case DType::kI32:
      round(int32_t{});
      break;
    case DType::kU32:
      round(uint32_t{});
      break;
    case DType::kI64:
      round(int64_t{});
      break;
    case DType::kU64:
      round(uint64_t{});
      break;
    default:
      throw Error(Finding::kUnsupportedDtype,
                  fmt::format("{} values cannot be read as weights", Name(view.dtype)));
  }
  return to == view.dtype ? values : out;  // the same type keeps its NaN payloads
}

}  // namespace kv
