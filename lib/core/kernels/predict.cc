// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The byte predictors of the gear codec (predict.h). Encoding subtracts a vector that is shifted by
// one byte, which is cheap. Decoding is a prefix sum: within a vector it takes log2(bytes) steps of
// shifting and adding, and the only dependency from vector to vector is one addition of the carry.

#include "lib/core/kernels/predict.h"

#include <cstdint>

#include "lib/core/kernels/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/predict.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// The vector code needs vectors of exactly 16, 32 or 64 bytes.
#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

void DeltaEncodeT(const std::byte* from, size_t size, std::byte* to) {
  ref::DeltaEncode(from, size, to);
}
void XorEncodeT(const std::byte* from, size_t size, std::byte* to) {
  ref::XorEncode(from, size, to);
}
void DeltaDecodeT(const std::byte* from, size_t size, std::byte* to) {
  ref::DeltaDecode(from, size, to);
}
void XorDecodeT(const std::byte* from, size_t size, std::byte* to) {
  ref::XorDecode(from, size, to);
}

#else

const uint8_t* U8(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }
uint8_t* U8(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }

using D = hn::ScalableTag<uint8_t>;
using V = hn::Vec<D>;

// The two predictors differ in one operation and its inverse.
struct Delta {
  template <class T>
  static HWY_INLINE T Undo(T v, T before) {
    return hn::Sub(v, before);
  }
  static HWY_INLINE V Apply(V a, V b) { return hn::Add(a, b); }
};
struct Xor {
  template <class T>
  static HWY_INLINE T Undo(T v, T before) {
    return hn::Xor(v, before);
  }
  static HWY_INLINE V Apply(V a, V b) { return hn::Xor(a, b); }
};

// Loading every vector again from one byte earlier would split cache lines. Shifting the last byte
// of the previous vector into this one avoids that and keeps up with memcpy. Vectors longer than 32
// bytes would need more shuffles.
using DEncode = hn::CappedTag<uint8_t, 32>;
using VEncode = hn::Vec<DEncode>;

HWY_INLINE VEncode OneEarlier(VEncode v, VEncode before) {
  const DEncode d;
#if HWY_MAX_BYTES == 16
  const VEncode blocks = before;
#else
  const VEncode blocks = hn::ConcatLowerUpper(d, v, before);
#endif
  return hn::CombineShiftRightBytes<15>(d, v, blocks);
}

// Encodes all that fits vectors and returns where it stopped. All stores except the first are
// aligned.
template <class Op>
HWY_INLINE size_t Encode(const std::byte* from, size_t size, std::byte* to) {
  const DEncode d;
  const size_t lanes = hn::Lanes(d);
  if (size < 2 * lanes) return 0;
  VEncode before = hn::LoadU(d, U8(from));
  hn::StoreU(Op::Undo(before, OneEarlier(before, hn::Zero(d))), d, U8(to));
  size_t at = lanes - reinterpret_cast<uintptr_t>(to) % lanes;
  before = hn::Set(d, static_cast<uint8_t>(from[at - 1]));  // only the last byte is used
  for (; at + lanes <= size; at += lanes) {
    const VEncode v = hn::LoadU(d, U8(from + at));
    hn::StoreU(Op::Undo(v, OneEarlier(v, before)), d, U8(to + at));
    before = v;
  }
  return at;
}

// Computes inclusive prefix sums within each 16-byte block, in four doubling steps.
template <class Op>
HWY_INLINE V ScanBlocks(V v) {
  const D d;
  v = Op::Apply(v, hn::ShiftLeftBytes<1>(d, v));
  v = Op::Apply(v, hn::ShiftLeftBytes<2>(d, v));
  v = Op::Apply(v, hn::ShiftLeftBytes<4>(d, v));
  return Op::Apply(v, hn::ShiftLeftBytes<8>(d, v));
}

// Moves whole 64-bit lanes up by `kLanes` and fills with zeros from below.
template <size_t kLanes>
HWY_INLINE V SlideUp(V v) {
  const hn::Repartition<uint64_t, D> d64;
  const auto lane = hn::Iota(d64, 0);
  // The lowest lanes become 0 afterwards, but need a valid index for the lookup.
  const auto from = hn::And(hn::Sub(lane, hn::Set(d64, kLanes)), hn::Set(d64, hn::Lanes(d64) - 1));
  const auto moved = hn::TableLookupLanes(hn::BitCast(d64, v), hn::IndicesFromVec(d64, from));
  return hn::BitCast(D(), hn::IfThenElseZero(hn::Gt(lane, hn::Set(d64, kLanes - 1)), moved));
}

// Computes inclusive prefix sums over a whole vector, and its last byte in every lane of `total`.
template <class Op>
HWY_INLINE V Scan(V v, V& total) {
  const D d;
  v = ScanBlocks<Op>(v);
  const V last = hn::TableLookupBytes(v, hn::Set(d, uint8_t{15}));  // last byte of each block
#if HWY_MAX_BYTES == 16
  total = last;
  return v;
#elif HWY_MAX_BYTES == 32
  // Two blocks of 16 bytes: the upper one adds the lower one's last byte.
  total = Op::Apply(last, hn::SwapAdjacentBlocks(last));
  return Op::Apply(v, hn::ConcatLowerLower(d, last, hn::Zero(d)));
#else
  // Four blocks of 16 bytes: two doubling steps over the blocks' last bytes.
  const V pairs = Op::Apply(last, SlideUp<2>(last));
  const V sums = Op::Apply(pairs, SlideUp<4>(pairs));  // running sums over the blocks
  const hn::Repartition<uint64_t, D> d64;
  total = hn::BitCast(
      d, hn::TableLookupLanes(hn::BitCast(d64, sums), hn::IndicesFromVec(d64, hn::Set(d64, 7))));
  return Op::Apply(v, SlideUp<2>(sums));
#endif
}

// Decodes all that fits vectors and returns where it stopped. The carry costs one addition per
// vector in the dependency chain, since a vector's total does not depend on it.
template <class Op>
HWY_INLINE size_t Decode(const std::byte* from, size_t size, std::byte* to) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V carry = hn::Zero(d);
  size_t at = 0;
  for (; at + lanes <= size; at += lanes) {
    V total;
    const V scan = Scan<Op>(hn::LoadU(d, U8(from + at)), total);
    hn::StoreU(Op::Apply(scan, carry), d, U8(to + at));
    carry = Op::Apply(carry, total);
  }
  return at;
}

// Returns the byte before `at`; 0 at the start of a plane.
std::byte Before(const std::byte* plane, size_t at) {
  return at == 0 ? std::byte{0} : plane[at - 1];
}

void DeltaEncodeT(const std::byte* from, size_t size, std::byte* to) {
  const size_t at = Encode<Delta>(from, size, to);
  ref::DeltaEncode(from + at, size - at, to + at, Before(from, at));
}
void XorEncodeT(const std::byte* from, size_t size, std::byte* to) {
  const size_t at = Encode<Xor>(from, size, to);
  ref::XorEncode(from + at, size - at, to + at, Before(from, at));
}
void DeltaDecodeT(const std::byte* from, size_t size, std::byte* to) {
  const size_t at = Decode<Delta>(from, size, to);
  ref::DeltaDecode(from + at, size - at, to + at, Before(to, at));
}
void XorDecodeT(const std::byte* from, size_t size, std::byte* to) {
  const size_t at = Decode<Xor>(from, size, to);
  ref::XorDecode(from + at, size - at, to + at, Before(to, at));
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(DeltaEncodeT);
HWY_EXPORT(XorEncodeT);
HWY_EXPORT(DeltaDecodeT);
HWY_EXPORT(XorDecodeT);

void DeltaEncode(const std::byte* from, size_t size, std::byte* to) noexcept {
  HWY_DYNAMIC_DISPATCH(DeltaEncodeT)(from, size, to);
}
void XorEncode(const std::byte* from, size_t size, std::byte* to) noexcept {
  HWY_DYNAMIC_DISPATCH(XorEncodeT)(from, size, to);
}
void DeltaDecode(const std::byte* from, size_t size, std::byte* to) noexcept {
  HWY_DYNAMIC_DISPATCH(DeltaDecodeT)(from, size, to);
}
void XorDecode(const std::byte* from, size_t size, std::byte* to) noexcept {
  HWY_DYNAMIC_DISPATCH(XorDecodeT)(from, size, to);
}

}  // namespace kv
#endif  // HWY_ONCE
