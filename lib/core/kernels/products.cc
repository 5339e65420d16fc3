// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/products.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/products.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

namespace kv {
#ifndef KV_PRODUCTS_SUMS
#define KV_PRODUCTS_SUMS
constexpr size_t kProductSums = 8;

// The eight sums of each product.
struct ProductSums {
  float own[kProductSums] = {}, other[kProductSums] = {}, both[kProductSums] = {};

  void Add(const float* a, const float* b, const float* mean, const float* inverse, size_t c) {
    const float one = (a[c] - mean[c]) * inverse[c], two = (b[c] - mean[c]) * inverse[c];
    own[c % kProductSums] += one * one;
    other[c % kProductSums] += two * two;
    both[c % kProductSums] += one * two;
  }
  DeviationProducts Total() const {
    DeviationProducts total;
    for (size_t i = 0; i < kProductSums; ++i) {
      total.own += own[i];
      total.other += other[i];
      total.both += both[i];
    }
    return total;
  }
};
#endif
}  // namespace kv

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void Products(const float* a, const float* b, const float* mean, const float* inverse, size_t count,
              ProductSums& sums) {
  const hn::CappedTag<float, kProductSums> d;
  const size_t whole = count / kProductSums * kProductSums;
  for (size_t part = 0; part < kProductSums; part += hn::Lanes(d)) {
    auto own = hn::Zero(d), other = own, both = own;
    for (size_t c = part; c < whole; c += kProductSums) {
      const auto middle = hn::LoadU(d, mean + c), unit = hn::LoadU(d, inverse + c);
      const auto one = hn::Mul(hn::Sub(hn::LoadU(d, a + c), middle), unit);
      const auto two = hn::Mul(hn::Sub(hn::LoadU(d, b + c), middle), unit);
      own = hn::Add(own, hn::Mul(one, one));
      other = hn::Add(other, hn::Mul(two, two));
      both = hn::Add(both, hn::Mul(one, two));
    }
    hn::StoreU(own, d, sums.own + part);
    hn::StoreU(other, d, sums.other + part);
    hn::StoreU(both, d, sums.both + part);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Products);

DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept {
  ProductSums sums;
  HWY_DYNAMIC_DISPATCH(Products)(a, b, mean, inverse, count, sums);
  for (size_t c = count / kProductSums * kProductSums; c < count; ++c)
    sums.Add(a, b, mean, inverse, c);
  return sums.Total();
}

namespace ref {

DeviationProducts ProductsOfDeviations(const float* a, const float* b, const float* mean,
                                       const float* inverse, size_t count) noexcept {
  ProductSums sums;
  for (size_t c = 0; c < count; ++c) sums.Add(a, b, mean, inverse, c);
  return sums.Total();
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
