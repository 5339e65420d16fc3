// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Search for similar rows (similarity.h): exact dot products of 8-bit rows, tile by tile, nearest
// signatures by population counts, and the comparison of two rows by deviations. The first two are
// integers, hence the same on every target whatever the order; the third adds floats in a fixed
// order.

#include "lib/core/kernels/similarity.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/similarity.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void DotProducts8(const int8_t* rows, size_t count, const int8_t* queries, size_t query_count,
                  size_t columns, int32_t* out) {
  ref::DotProducts8(rows, count, queries, query_count, columns, out);
}

#else

// A tile computes the products of a few rows with 16 queries, one per lane. One instruction
// multiplies and adds a pair of columns. Columns are worked through in slabs whose queries stay in
// the first-level cache.
constexpr size_t kQueries = 16, kSlab = 512;

using D32 = hn::CappedTag<int32_t, kQueries>;
using D16 = hn::Repartition<int16_t, D32>;
constexpr size_t kLanes = hn::MaxLanes(D32()), kVectors = kQueries / kLanes;
constexpr size_t kRows = kVectors > 2 ? 2 : 4;  // all sums then stay in registers

// Stores the pair of columns 2p and 2p + 1 of query q at packed[2 * (p * kQueries + q)], and zeros
// for missing queries and columns.
void PackQueries(const int8_t* queries, size_t count, size_t stride, size_t columns,
                 int16_t* packed) {
  std::fill_n(packed, (columns + 1) / 2 * 2 * kQueries, int16_t{0});
  for (size_t q = 0; q < count; ++q) {
    for (size_t c = 0; c < columns; ++c)
      packed[c / 2 * 2 * kQueries + 2 * q + c % 2] = queries[q * stride + c];
  }
}

// A slab of some rows, in pairs of columns; an odd last column is paired with zero.
struct WideRows {
  int16_t values[kRows][kSlab];

  void Load(const int8_t* rows, size_t count, size_t stride, size_t columns) {
    for (size_t r = 0; r < count; ++r) {
      for (size_t c = 0; c < columns; ++c) values[r][c] = rows[r * stride + c];
      if (columns % 2 != 0) values[r][columns] = 0;
    }
  }
  int32_t Pair(size_t row, size_t column) const {
    int32_t pair;
    std::memcpy(&pair, values[row] + column, sizeof(pair));
    return pair;
  }
};

// Stores the tile's sums, or adds them, to out[row * stride + query].
void Tile(const WideRows& rows, const int16_t* packed, size_t columns, bool add, int32_t* out,
          size_t stride) {
  const D32 d32;
  const D16 d16;
  hn::Vec<D32> sums[kRows][kVectors], more[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = more[r][v] = hn::Zero(d32);
  }
  for (size_t c = 0; c < columns; c += 2) {
    hn::Vec<D16> query[kVectors];
    for (size_t v = 0; v < kVectors; ++v)
      query[v] = hn::LoadU(d16, packed + c * kQueries + 2 * v * kLanes);
    for (size_t r = 0; r < kRows; ++r) {
      const auto row = hn::BitCast(d16, hn::Set(d32, rows.Pair(r, c)));
      for (size_t v = 0; v < kVectors; ++v)
        sums[r][v] = hn::ReorderWidenMulAccumulate(d32, row, query[v], sums[r][v], more[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) {
      // NEON keeps halves of a query's sum in two lanes up to here, so earlier slabs are added now.
      const auto sum = hn::RearrangeToOddPlusEven(sums[r][v], more[r][v]);
      int32_t* to = out + r * stride + v * kLanes;
      hn::StoreU(add ? hn::Add(sum, hn::LoadU(d32, to)) : sum, d32, to);
    }
  }
}

void DotProducts8(const int8_t* rows, size_t count, const int8_t* queries, size_t query_count,
                  size_t columns, int32_t* out) {
  WideRows wide = {};
  int16_t packed[kSlab * kQueries];
  std::fill_n(out, columns == 0 ? count * query_count : 0, 0);
  // From the second slab on, sums are added to those of the slabs before.
  for (size_t first = 0; first < columns; first += kSlab) {
    const size_t slab = std::min(kSlab, columns - first);
    for (size_t q = 0; q < query_count; q += kQueries) {
      const size_t some = std::min(kQueries, query_count - q);
      PackQueries(queries + q * columns + first, some, columns, slab, packed);
      for (size_t row = 0; row < count; row += kRows) {
        const size_t few = std::min(kRows, count - row);
        int32_t* to = out + row * query_count + q;
        wide.Load(rows + row * columns + first, few, columns, slab);
        if (some == kQueries && few == kRows) {
          Tile(wide, packed, slab, first > 0, to, query_count);
          continue;
        }
        // Tiles at the edges are computed in full into a buffer, from which the valid part is
        // added.
        int32_t part[kRows * kQueries];
        Tile(wide, packed, slab, false, part, kQueries);
        for (size_t r = 0; r < few; ++r) {
          for (size_t i = 0; i < some; ++i) {
            int32_t& sum = to[r * query_count + i];
            sum = (first > 0 ? sum : 0) + part[r * kQueries + i];
          }
        }
      }
    }
  }
}

#endif

// Combines distance and age into one number, so that a single minimum finds the nearest signature
// and, among equally near ones, the last.
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
      // There is no need for a horizontal sum: every lane holds a signature of its own.
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

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(DotProducts8);

void DotProducts8(const int8_t* rows, size_t count, const int8_t* queries, size_t query_count,
                  size_t columns, int32_t* out) noexcept {
  HWY_DYNAMIC_DISPATCH(DotProducts8)(rows, count, queries, query_count, columns, out);
}

namespace ref {

void DotProducts8(const int8_t* rows, size_t count, const int8_t* queries, size_t query_count,
                  size_t columns, int32_t* out) noexcept {
  for (size_t row = 0; row < count; ++row) {
    for (size_t query = 0; query < query_count; ++query) {
      int32_t sum = 0;
      for (size_t c = 0; c < columns; ++c)
        sum += int32_t{rows[row * columns + c]} * int32_t{queries[query * columns + c]};
      out[row * query_count + query] = sum;
    }
  }
}

}  // namespace ref

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

DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept {
  constexpr size_t kSums = 8;
  float own[kSums] = {}, other[kSums] = {}, both[kSums] = {};
  const auto add = [&](size_t c, size_t i) {
    const float one = (a[c] - mean[c]) * inverse[c], two = (b[c] - mean[c]) * inverse[c];
    own[i] += one * one;
    other[i] += two * two;
    both[i] += one * two;
  };
  size_t c = 0;
  for (; c + kSums <= count; c += kSums) {
    for (size_t i = 0; i < kSums; ++i) add(c + i, i);
  }
  for (size_t i = 0; c + i < count; ++i) add(c + i, i);
  DeviationProducts total;
  for (size_t i = 0; i < kSums; ++i) {
    total.own += own[i];
    total.other += other[i];
    total.both += both[i];
  }
  return total;
}

}  // namespace kv
#endif  // HWY_ONCE
