// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Run lengths on vectors: a vector of bytes at a time is searched for the start and the end of a
// run, and the bytes between runs are copied.

#include "lib/core/kernels/rle.h"

#include <cstdint>
#include <cstring>

#include "lib/core/kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/rle.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

size_t EncodedSizeT(const std::byte* from, size_t size) { return ref::RleEncodedSize(from, size); }
size_t EncodeT(const std::byte* from, size_t size, std::byte* to) {
  return ref::RleEncode(from, size, to);
}

#else

const uint8_t* U8(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

// Returns the next place from `at` on at which four equal bytes begin; `size` if there is none. A
// vector is compared with itself shifted by one, two and three bytes.
HWY_INLINE size_t NextRun(const std::byte* from, size_t size, size_t at) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  for (; at + lanes + ref::kRleMinRun - 1 <= size; at += lanes) {
    const auto v = hn::LoadU(d, U8(from + at));
    const auto equal = hn::And(hn::And(hn::Eq(v, hn::LoadU(d, U8(from + at + 1))),
                                       hn::Eq(v, hn::LoadU(d, U8(from + at + 2)))),
                               hn::Eq(v, hn::LoadU(d, U8(from + at + 3))));
    const intptr_t first = hn::FindFirstTrue(d, equal);
    if (first >= 0) return at + static_cast<size_t>(first);
  }
  for (; at + ref::kRleMinRun <= size; ++at) {
    // Multiplying a byte by 0x01010101 repeats it four times.
    const uint32_t four = LoadLE<uint32_t>(from + at);
    if (four == (four & 0xff) * 0x01010101u) return at;
  }
  return size;
}

// Returns the number of equal bytes from `at` on, not limited to 131.
HWY_INLINE size_t RunLength(const std::byte* from, size_t size, size_t at) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto value = hn::Set(d, static_cast<uint8_t>(from[at]));
  size_t end = at + 1;
  for (; end + lanes <= size; end += lanes) {
    const intptr_t first = hn::FindFirstTrue(d, hn::Ne(value, hn::LoadU(d, U8(from + end))));
    if (first >= 0) return end + static_cast<size_t>(first) - at;
  }
  while (end < size && from[end] == from[at]) ++end;
  return end - at;
}

// Calls literals(begin, end) and repeat(at, count) in order, for stretches and runs of any length.
// If a run leaves too few bytes for a last repeat, these begin the next stretch of literals, which
// is what the byte-by-byte reference does.
template <class Literals, class Repeat>
HWY_INLINE void Walk(const std::byte* from, size_t size, const Literals& literals,
                     const Repeat& repeat) {
  size_t at = 0;
  while (at < size) {
    const size_t run_at = NextRun(from, size, at);
    if (run_at > at) literals(at, run_at);
    if (run_at == size) return;
    size_t run = RunLength(from, size, run_at);
    const size_t rest = run % ref::kRleMaxRun;
    if (rest < ref::kRleMinRun) run -= rest;
    repeat(run_at, run);
    at = run_at + run;
  }
}

size_t EncodedSizeT(const std::byte* from, size_t size) {
  size_t bytes = 0;
  Walk(
      from, size, [&](size_t begin, size_t end) HWY_ATTR { bytes += RleBound(end - begin); },
      [&](size_t, size_t run)
          HWY_ATTR { bytes += (run + ref::kRleMaxRun - 1) / ref::kRleMaxRun * 2; });
  return bytes;
}

size_t EncodeT(const std::byte* from, size_t size, std::byte* to) {
  std::byte* out = to;
  Walk(
      from, size,
      [&](size_t begin, size_t end) HWY_ATTR {
        while (begin < end) {
          const size_t count = std::min(end - begin, ref::kRleMaxLiterals);
          *out++ = static_cast<std::byte>(count - 1);
          std::memcpy(out, from + begin, count);
          out += count;
          begin += count;
        }
      },
      [&](size_t at, size_t run) HWY_ATTR {
        while (run > 0) {
          const size_t count = std::min(run, ref::kRleMaxRun);
          *out++ = static_cast<std::byte>(0x80 | (count - ref::kRleMinRun));
          *out++ = from[at];
          run -= count;
        }
      });
  return static_cast<size_t>(out - to);
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(EncodedSizeT);
HWY_EXPORT(EncodeT);

size_t RleEncodedSize(const std::byte* from, size_t size) noexcept {
  return HWY_DYNAMIC_DISPATCH(EncodedSizeT)(from, size);
}

size_t RleEncode(const std::byte* from, size_t size, std::byte* to) noexcept {
  return HWY_DYNAMIC_DISPATCH(EncodeT)(from, size, to);
}

bool RleDecode(const std::byte* payload, size_t payload_size, std::byte* to, size_t size) noexcept {
  return ref::RleDecode(payload, payload_size, to, size);
}

}  // namespace kv
#endif  // HWY_ONCE
