// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Kernels for the change of one softmax: exp(x) - 1 and exp(x) - 1 - x without cancellation, and
// sums that stay exact for small changes.
#include "lib/study/dense/softmax_change.h"

#include <algorithm>
#include <cmath>

#include "lib/study/dense/score.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/study/dense/softmax_change.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "lib/study/dense/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kv::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

double DotRows(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

double SumRow(const float* a, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]);
  return sum;
}

void ScaleRow(float* row, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) row[i] *= factor;
}

SoftmaxChange ChangeSoftmax(const float* p, float* change, size_t count) {
  return ref::ChangeSoftmax(p, change, count);
}

size_t Above(const float* values, size_t count, float threshold, uint32_t* out) {
  size_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    if (values[i] >= threshold) out[found++] = static_cast<uint32_t>(i);
  }
  return found;
}

#else

// Sums are floats over a stretch of this many values, and doubles over stretches.
constexpr size_t kStretch = 2048;

// Calls body(i) at each whole vector, rest(i) at each value after the last one, and end() after
// every stretch.
template <typename Body, typename Rest, typename End>
HWY_INLINE void ByStretches(size_t count, const Body& body, const Rest& rest, const End& end) {
  for (size_t begin = 0; begin < count; begin += kStretch) {
    const size_t stop = HWY_MIN(count, begin + kStretch);
    size_t i = begin;
    for (; i + kStep <= stop; i += kStep) body(i);
    for (; i < stop; ++i) rest(i);
    end();
  }
}

double DotRows(const float* a, const float* b, size_t count) {
  const D d;
  double total = 0;
  float tail = 0;
  V sum = hn::Zero(d);
  ByStretches(
      count, [&](size_t i) { sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum); },
      [&](size_t i) { tail += a[i] * b[i]; },
      [&] {
        total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)) + tail);
        sum = hn::Zero(d);
        tail = 0;
      });
  return total;
}

double SumRow(const float* a, size_t count) {
  const D d;
  double total = 0;
  float tail = 0;
  V sum = hn::Zero(d);
  ByStretches(
      count, [&](size_t i) { sum = hn::Add(hn::LoadU(d, a + i), sum); },
      [&](size_t i) { tail += a[i]; },
      [&] {
        total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)) + tail);
        sum = hn::Zero(d);
        tail = 0;
      });
  return total;
}

void ScaleRow(float* row, size_t count, float factor) {
  const D d;
  const V by = hn::Set(d, factor);
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), by), d, row + i);
  for (; i < count; ++i) row[i] *= factor;
}

// Returns exp(x) - 1 and, in `beyond_linear`, exp(x) - 1 - x: near 0 by the polynomial of Exp
// without its constant terms, elsewhere by Exp.
HWY_INLINE V ExpMinusOne(V x, V& beyond_linear) {
  const D d;
  const auto is_small = hn::Lt(hn::Abs(x), hn::Set(d, 0.34f));
  V q = hn::Set(d, 1.381454020e-3f);
  q = hn::MulAdd(q, x, hn::Set(d, 8.368745207e-3f));
  q = hn::MulAdd(q, x, hn::Set(d, 4.166839079e-2f));
  q = hn::MulAdd(q, x, hn::Set(d, 1.666652040e-1f));
  q = hn::MulAdd(q, x, hn::Set(d, 4.999999343e-1f));
  q = hn::Mul(q, hn::Mul(x, x));
  if (HWY_LIKELY(hn::AllTrue(d, is_small))) {
    beyond_linear = q;
    return hn::Add(x, q);
  }
  const V large = hn::Sub(Exp(x), hn::Set(d, 1.0f));
  beyond_linear = hn::IfThenElse(is_small, q, hn::Sub(large, x));
  return hn::IfThenElse(is_small, hn::Add(x, q), large);
}

SoftmaxChange ChangeSoftmax(const float* p, float* change, size_t count) {
  const D d;
  const double mean = DotRows(p, change, count);
  // Changes this far from the mean overflow exponentials; such rows are rare, and their
  // quantisation is useless anyway.
  const float most = kv::RowMaximum(change, count);
  if (!(std::fabs(mean) < 1e4) || !(static_cast<double>(most) - mean < 60))
    return ref::ChangeSoftmax(p, change, count);
  const auto middle = static_cast<float>(mean);
  const V shift = hn::Set(d, middle);
  double total = 0, curved = 0;  // sums of p (e^x - 1) and of p (e^x - 1 - x)
  V sum = hn::Zero(d), beyond = hn::Zero(d);
  double tail = 0, tail_beyond = 0;
  ByStretches(
      count,
      [&](size_t i) {
        const V weight = hn::LoadU(d, p + i);
        V q;
        const V a = ExpMinusOne(hn::Sub(hn::LoadU(d, change + i), shift), q);
        sum = hn::MulAdd(weight, a, sum);
        beyond = hn::MulAdd(weight, q, beyond);
        hn::StoreU(a, d, change + i);
      },
      [&](size_t i) {
        const double x = static_cast<double>(change[i] - middle), a = std::expm1(x);
        tail += static_cast<double>(p[i]) * a;
        tail_beyond += static_cast<double>(p[i]) * (a - x);
        change[i] = static_cast<float>(a);
      },
      [&] {
        total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum))) + tail;
        curved += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, beyond))) + tail_beyond;
        sum = beyond = hn::Zero(d);
        tail = tail_beyond = 0;
      });
  const auto offset = static_cast<float>(total), factor = static_cast<float>(1 / (1 + total));
  const V by = hn::Set(d, factor), from = hn::Set(d, offset);
  double moved = 0;
  ByStretches(
      count,
      [&](size_t i) {
        const V e =
            hn::Mul(hn::Mul(hn::LoadU(d, p + i), by), hn::Sub(hn::LoadU(d, change + i), from));
        sum = hn::Add(sum, hn::Abs(e));
        hn::StoreU(e, d, change + i);
      },
      [&](size_t i) {
        change[i] = p[i] * factor * (change[i] - offset);
        tail += static_cast<double>(std::fabs(change[i]));
      },
      [&] {
        moved += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum))) + tail;
        sum = hn::Zero(d);
        tail = 0;
      });
  // KL is ln Z minus the mean of x: the linear parts cancel, except for their rounding.
  return {std::max(0.0, curved + (std::log1p(total) - total)), moved / 2};
}

size_t Above(const float* values, size_t count, float threshold, uint32_t* out) {
  const D d;
  const V limit = hn::Set(d, threshold);
  size_t found = 0, i = 0;
  for (; i + kStep <= count; i += kStep) {
    if (HWY_LIKELY(hn::AllFalse(d, hn::Ge(hn::LoadU(d, values + i), limit)))) continue;
    for (size_t j = i; j < i + kStep; ++j) {
      if (values[j] >= threshold) out[found++] = static_cast<uint32_t>(j);
    }
  }
  for (; i < count; ++i) {
    if (values[i] >= threshold) out[found++] = static_cast<uint32_t>(i);
  }
  return found;
}

#endif

}  // namespace kv::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(SumRow);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(ChangeSoftmax);
HWY_EXPORT(Above);

bool SoftmaxRow(float* scores, size_t count) noexcept {
  const float most = RowMaximum(scores, count);
  if (!std::isfinite(most)) return false;
  ExpRow(scores, count, most);
  const double total = HWY_DYNAMIC_DISPATCH(SumRow)(scores, count);
  if (!std::isfinite(total)) return false;  // a score is NaN
  HWY_DYNAMIC_DISPATCH(ScaleRow)(scores, count, static_cast<float>(1 / total));
  return true;
}

SoftmaxChange ChangeSoftmax(const float* p, float* change, size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(ChangeSoftmax)(p, change, count);
}

SoftmaxChange ref::ChangeSoftmax(const float* p, float* change, size_t count) noexcept {
  // Probabilities that were rounded to float do not add up to 1, so their actual sum is used.
  double most = -INFINITY, mean = 0, total = 0, sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double c = change[i];
    most = c > most || std::isnan(c) ? c : most;
    mean += static_cast<double>(p[i]) * c;
    total += static_cast<double>(p[i]);
  }
  for (size_t i = 0; i < count; ++i)
    sum += static_cast<double>(p[i]) * std::exp(static_cast<double>(change[i]) - most) / total;
  SoftmaxChange result{most + std::log(sum) - mean / total, 0};
  for (size_t i = 0; i < count; ++i) {
    const double before = p[i];
    const double after = before * std::exp(static_cast<double>(change[i]) - most) / sum;
    result.moved += std::fabs(after - before) / 2;
    change[i] = static_cast<float>(after - before);
  }
  if (result.kl < 0) result.kl = 0;  // rounding made it negative
  return result;
}

void ListLargest(const float* values, size_t count, size_t most, const std::vector<uint32_t>& known,
                 std::vector<uint32_t>& out) {
  most = std::min(most, count);
  const auto comes_first = [&](uint32_t a, uint32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  };
  // Chooses a threshold that at least `most` values reach: the least of the known ones, or the
  // `most`th among values at both ends, where attention is largest.
  float threshold = -INFINITY;
  if (known.size() >= most) {
    threshold = INFINITY;
    for (size_t i = 0; i < most; ++i) threshold = std::min(threshold, values[known[i]]);
  } else if (count > 4 * most) {
    std::vector<float> some(values, values + most);
    some.insert(some.end(), values + count - 2 * most, values + count);
    std::nth_element(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(most) - 1, some.end(),
                     std::greater<>());
    threshold = some[most - 1];
  }
  if (out.size() < count) out.resize(count);
  out.resize(HWY_DYNAMIC_DISPATCH(Above)(values, count, threshold, out.data()));
  const size_t there = std::min(most, out.size());
  std::partial_sort(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(there), out.end(),
                    comes_first);
  out.resize(there);
}

}  // namespace kv
#endif
