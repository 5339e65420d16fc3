// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/kernels/convert.h"

#include "lib/base/bytes.h"
#include "lib/base/half.h"

namespace kv {

void HalfToFloat(const std::byte* from, float* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) to[i] = F16ToF32(LoadLE<uint16_t>(from + 2 * i));
}
void BFloatToFloat(const std::byte* from, float* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) to[i] = BF16ToF32(LoadLE<uint16_t>(from + 2 * i));
}
void FloatToHalf(const float* from, std::byte* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) StoreLE(to + 2 * i, F32ToF16(from[i]));
}
void FloatToBFloat(const float* from, std::byte* to, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) StoreLE(to + 2 * i, F32ToBF16(from[i]));
}

}  // namespace kv
