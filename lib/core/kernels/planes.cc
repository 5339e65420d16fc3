// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Splitting of words into byte planes and joining (planes.h). Vectors of words are separated into
// even and odd bytes, once for two planes and twice for four; joining interleaves them again.
// Stores are aligned, and the first and the last vector overlap their neighbours instead of leaving
// a scalar rest.

#include "lib/core/kernels/planes.h"

#include <cstdint>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/planes.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {
#if HWY_TARGET == HWY_SCALAR

void Split2(const std::byte* from, size_t words, std::byte* const* planes) {
  ref::SplitPlanes<2>(from, words, planes);
}
void Join2(const std::byte* const* planes, size_t words, std::byte* to) {
  ref::JoinPlanes<2>(planes, words, to);
}
void Split4(const std::byte* from, size_t words, std::byte* const* planes) {
  ref::SplitPlanes<4>(from, words, planes);
}
void Join4(const std::byte* const* planes, size_t words, std::byte* to) {
  ref::JoinPlanes<4>(planes, words, to);
}

#else

const uint8_t* U8(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }
uint8_t* U8(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }

using D = hn::ScalableTag<uint8_t>;
using V = hn::Vec<D>;

// Calls body(at) for every vector of words. The first and the last call overlap their neighbours,
// so that there is no scalar tail and all other stores to `to`, which advances by `kStride` bytes a
// word, are aligned. Returns false if there are fewer words than lanes.
template <size_t kStride, class Body>
HWY_INLINE bool ForWords(size_t words, const std::byte* to, const Body& body) {
  const size_t lanes = hn::Lanes(D());
  if (words < lanes) return false;
  const size_t past = reinterpret_cast<uintptr_t>(to) % lanes;
  size_t at = 0;
  if (past % kStride == 0 && past != 0) {
    body(0);
    at = (lanes - past) / kStride;
  }
  for (; at + lanes <= words; at += lanes) body(at);
  if (at < words) body(words - lanes);
  return true;
}

void Split2(const std::byte* from, size_t words, std::byte* const* planes) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const bool done = ForWords<1>(words, planes[0], [&](size_t at) HWY_ATTR {
    const V v0 = hn::LoadU(d, U8(from + 2 * at));
    const V v1 = hn::LoadU(d, U8(from + 2 * at + lanes));
    // Even bytes of a pair of vectors are plane 0, odd ones plane 1.
    hn::StoreU(hn::ConcatEven(d, v1, v0), d, U8(planes[0] + at));
    hn::StoreU(hn::ConcatOdd(d, v1, v0), d, U8(planes[1] + at));
  });
  if (!done) ref::SplitPlanes<2>(from, words, planes);
}

void Join2(const std::byte* const* planes, size_t words, std::byte* to) {
  const D d;
  const bool done = ForWords<2>(words, to, [&](size_t at) HWY_ATTR {
    hn::StoreInterleaved2(hn::LoadU(d, U8(planes[0] + at)), hn::LoadU(d, U8(planes[1] + at)), d,
                          U8(to + 2 * at));
  });
  if (!done) ref::JoinPlanes<2>(planes, words, to);
}

void Split4(const std::byte* from, size_t words, std::byte* const* planes) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const bool done = ForWords<1>(words, planes[0], [&](size_t at) HWY_ATTR {
    const uint8_t* p = U8(from + 4 * at);
    const V v0 = hn::LoadU(d, p), v1 = hn::LoadU(d, p + lanes);
    const V v2 = hn::LoadU(d, p + 2 * lanes), v3 = hn::LoadU(d, p + 3 * lanes);
    // Two rounds of separating even from odd bytes give the four planes.
    const V even0 = hn::ConcatEven(d, v1, v0), even1 = hn::ConcatEven(d, v3, v2);
    const V odd0 = hn::ConcatOdd(d, v1, v0), odd1 = hn::ConcatOdd(d, v3, v2);
    hn::StoreU(hn::ConcatEven(d, even1, even0), d, U8(planes[0] + at));
    hn::StoreU(hn::ConcatEven(d, odd1, odd0), d, U8(planes[1] + at));
    hn::StoreU(hn::ConcatOdd(d, even1, even0), d, U8(planes[2] + at));
    hn::StoreU(hn::ConcatOdd(d, odd1, odd0), d, U8(planes[3] + at));
  });
  if (!done) ref::SplitPlanes<4>(from, words, planes);
}

void Join4(const std::byte* const* planes, size_t words, std::byte* to) {
  const D d;
  const bool done = ForWords<4>(words, to, [&](size_t at) HWY_ATTR {
    hn::StoreInterleaved4(hn::LoadU(d, U8(planes[0] + at)), hn::LoadU(d, U8(planes[1] + at)),
                          hn::LoadU(d, U8(planes[2] + at)), hn::LoadU(d, U8(planes[3] + at)), d,
                          U8(to + 4 * at));
  });
  if (!done) ref::JoinPlanes<4>(planes, words, to);
}

#endif  // HWY_TARGET

}  // namespace

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Split2);
HWY_EXPORT(Join2);
HWY_EXPORT(Split4);
HWY_EXPORT(Join4);

void SplitPlanes2(const std::byte* from, size_t words, std::byte* low, std::byte* high) noexcept {
  std::byte* const planes[] = {low, high};
  HWY_DYNAMIC_DISPATCH(Split2)(from, words, planes);
}
void JoinPlanes2(const std::byte* low, const std::byte* high, size_t words,
                 std::byte* to) noexcept {
  const std::byte* const planes[] = {low, high};
  HWY_DYNAMIC_DISPATCH(Join2)(planes, words, to);
}
void SplitPlanes4(const std::byte* from, size_t words, std::byte* const planes[4]) noexcept {
  HWY_DYNAMIC_DISPATCH(Split4)(from, words, planes);
}
void JoinPlanes4(const std::byte* const planes[4], size_t words, std::byte* to) noexcept {
  HWY_DYNAMIC_DISPATCH(Join4)(planes, words, to);
}

// Plain loops, which compilers vectorise.
void Rotl16(const std::byte* from, size_t words, std::byte* to) noexcept {
  for (size_t i = 0; i < words; ++i) {
    const auto word = LoadLE<uint16_t>(from + 2 * i);
    StoreLE(to + 2 * i, static_cast<uint16_t>(word << 1 | word >> 15));
  }
}

void Rotr16(const std::byte* from, size_t words, std::byte* to) noexcept {
  for (size_t i = 0; i < words; ++i) {
    const auto word = LoadLE<uint16_t>(from + 2 * i);
    StoreLE(to + 2 * i, static_cast<uint16_t>(word >> 1 | word << 15));
  }
}

}  // namespace kv
#endif  // HWY_ONCE
