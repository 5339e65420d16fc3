// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/kernels/predict.h"

#include "lib/kernels/reference.h"

namespace kv {

void DeltaEncode(const std::byte* from, size_t size, std::byte* to) noexcept {
  ref::DeltaEncode(from, size, to);
}
void XorEncode(const std::byte* from, size_t size, std::byte* to) noexcept {
  ref::XorEncode(from, size, to);
}
void DeltaDecode(const std::byte* from, size_t size, std::byte* to) noexcept {
  ref::DeltaDecode(from, size, to);
}
void XorDecode(const std::byte* from, size_t size, std::byte* to) noexcept {
  ref::XorDecode(from, size, to);
}

}  // namespace kv
