// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/hamming.h"

#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/hamming.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Distance and age as one number: the least of all is the answer.
uint64_t Nearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                 const uint64_t* query) {
  const hn::ScalableTag<int64_t> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  uint64_t least = UINT64_MAX;
  size_t i = 0;
  if (count >= lanes) {
    auto best = hn::Set(d, INT64_MAX);
    auto age = hn::Sub(hn::Set(d, static_cast<int64_t>(count)), hn::Iota(d, 0));
    const auto step = hn::Set(d, static_cast<int64_t>(lanes));
    for (; i + lanes <= count; i += lanes) {
      auto bits = hn::Zero(du);
      for (size_t w = 0; w < words; ++w) {
        const auto other = hn::LoadU(du, signatures + w * stride + i);
        bits = hn::Add(bits, hn::PopulationCount(hn::Xor(other, hn::Set(du, query[w]))));
      }
      best = hn::Min(best, hn::Add(hn::BitCast(d, hn::ShiftLeft<32>(bits)), age));
      age = hn::Sub(age, step);
    }
    least = static_cast<uint64_t>(hn::GetLane(hn::MinOfLanes(d, best)));
  }
  for (; i < count; ++i) {
    uint64_t bits = 0;
    for (size_t w = 0; w < words; ++w)
      bits += static_cast<uint64_t>(hwy::PopCount(signatures[w * stride + i] ^ query[w]));
    least = std::min(least, bits << 32 | (count - i));
  }
  return least;
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Nearest);

NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept {
  const uint64_t least = HWY_DYNAMIC_DISPATCH(Nearest)(signatures, stride, words, count, query);
  return {static_cast<uint32_t>(least >> 32), static_cast<uint32_t>(least)};
}

namespace ref {

NearestSignature FindNearest(const uint64_t* signatures, size_t stride, size_t words, size_t count,
                             const uint64_t* query) noexcept {
  NearestSignature nearest{UINT32_MAX, 0};
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    for (size_t w = 0; w < words; ++w)
      bits += static_cast<uint32_t>(std::popcount(signatures[w * stride + i] ^ query[w]));
    if (bits <= nearest.distance) nearest = {bits, static_cast<uint32_t>(count - i)};
  }
  return nearest;
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
