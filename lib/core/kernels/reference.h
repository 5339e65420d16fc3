// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"

// Scalar specifications of the byte kernels, as simple as possible. Every SIMD target must equal
// them. Kernels also use them for the rest of an array and on the SCALAR target.
namespace kv::ref {

template <size_t kPlanes>
void SplitPlanes(const std::byte* from, size_t words, std::byte* const* planes) noexcept {
  for (size_t i = 0; i < words; ++i) {
    for (size_t b = 0; b < kPlanes; ++b) planes[b][i] = from[i * kPlanes + b];
  }
}

template <size_t kPlanes>
void JoinPlanes(const std::byte* const* planes, size_t words, std::byte* to) noexcept {
  for (size_t i = 0; i < words; ++i) {
    for (size_t b = 0; b < kPlanes; ++b) to[i * kPlanes + b] = planes[b][i];
  }
}

inline std::byte Minus(std::byte a, std::byte b) {
  return static_cast<std::byte>(static_cast<uint8_t>(a) - static_cast<uint8_t>(b));
}
inline std::byte Plus(std::byte a, std::byte b) {
  return static_cast<std::byte>(static_cast<uint8_t>(a) + static_cast<uint8_t>(b));
}

// `before` is the (decoded) byte before the first one: 0 at the start of a plane.
inline void DeltaEncode(const std::byte* from, size_t size, std::byte* to,
                        std::byte before = std::byte{0}) noexcept {
  for (size_t i = 0; i < size; ++i) {
    to[i] = Minus(from[i], before);
    before = from[i];
  }
}
inline void XorEncode(const std::byte* from, size_t size, std::byte* to,
                      std::byte before = std::byte{0}) noexcept {
  for (size_t i = 0; i < size; ++i) {
    to[i] = from[i] ^ before;
    before = from[i];
  }
}
inline void DeltaDecode(const std::byte* from, size_t size, std::byte* to,
                        std::byte before = std::byte{0}) noexcept {
  for (size_t i = 0; i < size; ++i) to[i] = before = Plus(before, from[i]);
}
inline void XorDecode(const std::byte* from, size_t size, std::byte* to,
                      std::byte before = std::byte{0}) noexcept {
  for (size_t i = 0; i < size; ++i) to[i] = before = before ^ from[i];
}

// The run-length format of MNN's gear codec: a control byte below 128 is followed by that many
// literals plus one; otherwise its low bits are a run's length less kRleMinRun.
constexpr size_t kRleMinRun = 4, kRleMaxRun = 131, kRleMaxLiterals = 128;

// Returns the number of equal bytes from `at` on, at most kRleMaxRun.
inline size_t RleRun(const std::byte* from, size_t size, size_t at) noexcept {
  size_t run = 1;
  while (run < kRleMaxRun && at + run < size && from[at + run] == from[at]) ++run;
  return run;
}

inline size_t RleEncodedSize(const std::byte* from, size_t size) noexcept {
  size_t at = 0, written = 0;
  while (at < size) {
    const size_t run = RleRun(from, size, at);
    if (run >= kRleMinRun) {
      written += 2;
      at += run;
      continue;
    }
    size_t literals = 0;
    for (; at < size && RleRun(from, size, at) < kRleMinRun; ++at) ++literals;
    // A run of literals takes a control byte per kRleMaxLiterals.
    written += literals + (literals + kRleMaxLiterals - 1) / kRleMaxLiterals;
  }
  return written;
}

inline size_t RleEncode(const std::byte* from, size_t size, std::byte* to) noexcept {
  size_t at = 0, written = 0;
  while (at < size) {
    const size_t run = RleRun(from, size, at);
    if (run >= kRleMinRun) {
      to[written++] = static_cast<std::byte>(0x80 | (run - kRleMinRun));
      to[written++] = from[at];
      at += run;
      continue;
    }
    const size_t start = at;
    while (at < size && at - start < kRleMaxLiterals && RleRun(from, size, at) < kRleMinRun) ++at;
    to[written++] = static_cast<std::byte>(at - start - 1);
    std::copy(from + start, from + at, to + written);
    written += at - start;
  }
  return written;
}

inline bool RleDecode(const std::byte* payload, size_t payload_size, std::byte* to,
                      size_t size) noexcept {
  size_t at = 0, written = 0;
  if (payload_size == 0 || size == 0) return false;
  while (at < payload_size) {
    const size_t control = static_cast<size_t>(payload[at++]);
    if (control < 128) {
      const size_t count = control + 1;
      if (count > payload_size - at || count > size - written) return false;
      std::copy(payload + at, payload + at + count, to + written);
      at += count;
      written += count;
    } else {
      const size_t count = (control & 127) + kRleMinRun;
      if (at == payload_size || count > size - written) return false;
      std::fill(to + written, to + written + count, payload[at++]);
      written += count;
    }
  }
  return written == size;
}

inline void HalfToFloat(const std::byte* from, float* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) to[i] = F16ToF32(LoadLE<uint16_t>(from + 2 * i));
}
inline void BFloatToFloat(const std::byte* from, float* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) to[i] = BF16ToF32(LoadLE<uint16_t>(from + 2 * i));
}
inline void FloatToHalf(const float* from, std::byte* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) StoreLE(to + 2 * i, F32ToF16(from[i]));
}
inline void FloatToBFloat(const float* from, std::byte* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) StoreLE(to + 2 * i, F32ToBF16(from[i]));
}

}  // namespace kv::ref
