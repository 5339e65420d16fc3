// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/kernels/planes.h"

#include "lib/kernels/reference.h"

namespace kv {

void SplitPlanes2(const std::byte* from, size_t words, std::byte* low, std::byte* high) noexcept {
  std::byte* const planes[] = {low, high};
  ref::SplitPlanes<2>(from, words, planes);
}
void JoinPlanes2(const std::byte* low, const std::byte* high, size_t words,
                 std::byte* to) noexcept {
  const std::byte* const planes[] = {low, high};
  ref::JoinPlanes<2>(planes, words, to);
}
void SplitPlanes4(const std::byte* from, size_t words, std::byte* const planes[4]) noexcept {
  ref::SplitPlanes<4>(from, words, planes);
}
void JoinPlanes4(const std::byte* const planes[4], size_t words, std::byte* to) noexcept {
  ref::JoinPlanes<4>(planes, words, to);
}

}  // namespace kv
