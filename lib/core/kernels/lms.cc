// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The predictor of lms.h on vectors of channels. Channels do not depend on each other, so that a
// lane does exactly what the scalar reference does with one channel: the same operations in the
// same order, which makes contexts and signs equal on every target. An encoder and a decoder that
// disagreed in a single bit would lose the rest of the chunk.

#include "lib/core/kernels/lms.h"

#include <algorithm>
#include <bit>

#include "lib/core/base/bytes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/core/kernels/lms.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kLmsPadding>;
using DI = hn::RebindToSigned<DF>;

// Each sum is written out as products and additions of its own: a fused multiply-add would round
// once less and give other bits.
void Predict(const LmsChannels& c, uint16_t* contexts, uint8_t* signs) {
  const DF d;
  const DI di;
  const hn::Rebind<int16_t, DF> d16;
  const hn::Rebind<uint16_t, DF> du16;
  const hn::Rebind<uint8_t, DF> d8;
  const auto magnitude_mask = hn::Set(di, 0x7fffffff);
  for (size_t i = 0; i < c.padded; i += hn::Lanes(d)) {
    const auto load = [&](const float* from) HWY_ATTR { return hn::LoadU(d, from + i); };
    const auto own =
        hn::Add(hn::Mul(load(c.weights[0]), load(c.x1)), hn::Mul(load(c.weights[1]), load(c.p1)));
    const auto older =
        hn::Add(hn::Mul(load(c.weights[2]), load(c.x2)), hn::Mul(load(c.weights[3]), load(c.p2)));
    const auto sum = hn::Add(hn::Add(own, older), hn::Mul(load(c.weights[4]), load(c.mean)));
    const auto all_bits = hn::BitCast(di, sum);
    // Exponents are compared as integers, which is exact and cheaper than logarithms: the upper
    // bits of a float are its half octave.
    // Hostile frames can lead to infinities and NaNs; predictions of these become 0.
    const auto finite = hn::Lt(hn::And(all_bits, magnitude_mask), hn::Set(di, 0x7f800000));
    const auto bits = hn::IfThenElseZero(finite, all_bits);
    hn::StoreU(hn::BitCast(d, bits), d, c.prediction + i);

    const auto magnitude = hn::And(bits, magnitude_mask);
    const auto octave =
        hn::Min(hn::Max(hn::Sub(hn::ShiftRight<22>(magnitude), hn::Set(di, 210)), hn::Zero(di)),
                hn::Set(di, 47));
    const auto sigma = hn::And(hn::BitCast(di, load(c.sigma)), magnitude_mask);
    const auto sigma_exponent = hn::ShiftRight<23>(sigma);
    // The certainty is the difference of two exponents: how many octaves the prediction exceeds its
    // error.
    const auto certainty = hn::Min(
        hn::Max(hn::Add(hn::Sub(hn::ShiftRight<23>(magnitude), sigma_exponent), hn::Set(di, 2)),
                hn::Zero(di)),
        hn::Set(di, 6));
    const auto context = hn::Add(hn::Sub(hn::ShiftLeft<3>(octave), octave), certainty);
    hn::StoreU(hn::BitCast(du16, hn::DemoteTo(d16, context)), du16, contexts + i);
    const auto sign = hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 1));
    hn::StoreU(hn::DemoteTo(d8, sign), d8, signs + i);
  }
}

void Update(const LmsChannels& c, const float* x, float sigma_rate, float mean_rate) {
  const DF d;
  const auto rate = hn::Set(d, 0.03f), floor = hn::Set(d, 1e-6f);
  const auto a = hn::Set(d, sigma_rate), b = hn::Set(d, mean_rate);
  for (size_t i = 0; i < c.padded; i += hn::Lanes(d)) {
    const auto x1 = hn::LoadU(d, c.x1 + i), p1 = hn::LoadU(d, c.p1 + i);
    const auto x2 = hn::LoadU(d, c.x2 + i), p2 = hn::LoadU(d, c.p2 + i);
    const auto mean = hn::LoadU(d, c.mean + i), sigma = hn::LoadU(d, c.sigma + i);
    const auto value = hn::LoadU(d, x + i);
    const auto error = hn::Sub(value, hn::LoadU(d, c.prediction + i));
    const auto near = hn::Add(hn::Mul(x1, x1), hn::Mul(p1, p1));
    const auto far = hn::Add(hn::Mul(x2, x2), hn::Mul(p2, p2));
    const auto power = hn::Add(hn::Add(hn::Add(near, far), hn::Mul(mean, mean)), floor);
    // The step is normalised by the power of the taps, so that the rate does not depend on the
    // scale of the values.
    const auto gain = hn::Div(hn::Mul(error, rate), power);
    const auto learn = [&](float* weights, auto tap) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, weights + i), hn::Mul(gain, tap)), d, weights + i);
    };
    learn(c.weights[0], x1);
    learn(c.weights[1], p1);
    learn(c.weights[2], x2);
    learn(c.weights[3], p2);
    learn(c.weights[4], mean);
    hn::StoreU(hn::Add(sigma, hn::Mul(hn::Sub(hn::Abs(error), sigma), a)), d, c.sigma + i);
    hn::StoreU(hn::Add(mean, hn::Mul(hn::Sub(value, mean), b)), d, c.mean + i);
  }
}

void Load(const std::byte* values, size_t count, bool bfloat, float scale, float* x,
          size_t padded) {
  const DF d;
  const DI di;
  const hn::Rebind<uint16_t, DF> d16;
  const auto factor = hn::Set(d, scale);
  const auto exponents = hn::Set(di, bfloat ? 0x7f80 : 0x7c00);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    // A half's bits, shifted to the place of a float's, are 2^-112 (f16) of its value; `scale`
    // corrects it.
    const auto word = hn::BitCast(
        di, hn::PromoteTo(hn::RebindToUnsigned<DI>(),
                          hn::LoadU(d16, reinterpret_cast<const uint16_t*>(values) + i)));
    const auto magnitude = hn::And(word, hn::Set(di, 0x7fff));
    const auto sign = hn::ShiftLeft<16>(hn::And(word, hn::Set(di, 0x8000)));
    const auto wide = bfloat ? hn::ShiftLeft<16>(magnitude) : hn::ShiftLeft<13>(magnitude);
    const auto finite = hn::Ne(hn::And(word, exponents), exponents);
    const auto product = hn::Mul(hn::BitCast(d, hn::Or(wide, sign)), factor);
    hn::StoreU(hn::BitCast(d, hn::IfThenElseZero(finite, hn::BitCast(di, product))), d, x + i);
  }
  ref::LmsLoad(values + 2 * i, count - i, bfloat, scale, x + i, padded - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace kv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kv {

HWY_EXPORT(Predict);
HWY_EXPORT(Update);
HWY_EXPORT(Load);

void LmsPredict(const LmsChannels& channels, uint16_t* contexts, uint8_t* signs) noexcept {
  HWY_DYNAMIC_DISPATCH(Predict)(channels, contexts, signs);
}

void LmsUpdate(const LmsChannels& channels, const float* x, float sigma_rate,
               float mean_rate) noexcept {
  HWY_DYNAMIC_DISPATCH(Update)(channels, x, sigma_rate, mean_rate);
}

void LmsLoad(const std::byte* values, size_t count, bool bfloat, float scale, float* x,
             size_t padded) noexcept {
  HWY_DYNAMIC_DISPATCH(Load)(values, count, bfloat, scale, x, padded);
}

namespace ref {

void LmsPredict(const LmsChannels& c, uint16_t* contexts, uint8_t* signs) noexcept {
  for (size_t i = 0; i < c.padded; ++i) {
    const float sum = ((c.weights[0][i] * c.x1[i] + c.weights[1][i] * c.p1[i]) +
                       (c.weights[2][i] * c.x2[i] + c.weights[3][i] * c.p2[i])) +
                      c.weights[4][i] * c.mean[i];
    auto bits = std::bit_cast<uint32_t>(sum);
    if ((bits & 0x7fffffff) >= 0x7f800000) bits = 0;
    c.prediction[i] = std::bit_cast<float>(bits);
    const auto magnitude = static_cast<int>(bits & 0x7fffffff);
    const int octave = std::clamp((magnitude >> 22) - 210, 0, 47);
    // Sigma is never negative, but a NaN that a hostile frame produces may have any sign.
    const int sigma = static_cast<int>((std::bit_cast<uint32_t>(c.sigma[i]) & 0x7fffffff) >> 23);
    const int certainty = std::clamp((magnitude >> 23) - sigma + 2, 0, 6);
    contexts[i] = static_cast<uint16_t>(7 * octave + certainty);
    signs[i] = static_cast<uint8_t>(bits >> 31);
  }
}

void LmsUpdate(const LmsChannels& c, const float* x, float sigma_rate, float mean_rate) noexcept {
  for (size_t i = 0; i < c.padded; ++i) {
    const float taps[5] = {c.x1[i], c.p1[i], c.x2[i], c.p2[i], c.mean[i]};
    const float error = x[i] - c.prediction[i];
    const float power =
        (((taps[0] * taps[0] + taps[1] * taps[1]) + (taps[2] * taps[2] + taps[3] * taps[3])) +
         taps[4] * taps[4]) +
        1e-6f;
    const float gain = error * 0.03f / power;
    for (int tap = 0; tap < 5; ++tap) c.weights[tap][i] += gain * taps[tap];
    c.sigma[i] += ((error < 0 ? -error : error) - c.sigma[i]) * sigma_rate;
    c.mean[i] += (x[i] - c.mean[i]) * mean_rate;
  }
}

void LmsLoad(const std::byte* values, size_t count, bool bfloat, float scale, float* x,
             size_t padded) noexcept {
  const uint32_t exponents = bfloat ? 0x7f80 : 0x7c00;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t word = LoadLE<uint16_t>(values + 2 * i);
    // The bits of an f16 in the place of a float's are 2^-112 of its value.
    const uint32_t bits = (word & 0x8000) << 16 | (word & 0x7fff) << (bfloat ? 16 : 13);
    x[i] = (word & exponents) == exponents ? 0 : std::bit_cast<float>(bits) * scale;
  }
  std::fill(x + count, x + padded, 0.0f);
}

}  // namespace ref
}  // namespace kv
#endif  // HWY_ONCE
