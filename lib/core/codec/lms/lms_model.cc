// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/lms/lms_model.h"

#include <algorithm>
#include <cmath>

#include "lib/core/kernels/symbols.h"

namespace kv {
namespace {

const Rotation kNone;

}  // namespace

float LmsScale(uint32_t largest_exponent) {
  return std::ldexp(1.0f, 127 - static_cast<int>(largest_exponent));
}

uint32_t LmsLargestExponent(ByteSpan values, bool bfloat) {
  const uint32_t largest =
      LargestFinite(values.data(), values.size() / 2, bfloat) >> (bfloat ? 7 : 10);
  return std::clamp(largest, 1u, kMaxLmsExponent);
}

LmsModel::LmsModel(uint64_t rows, uint64_t columns, uint32_t pairing, uint32_t largest_exponent,
                   bool bfloat, const Rotation* rotation, const RowSteps& steps, Arena* arena)
    : columns_(columns),
      padded_((columns + kLmsPadding - 1) / kLmsPadding * kLmsPadding),
      pairing_(pairing),
      bfloat_(bfloat),
      scale_(LmsScale(largest_exponent)),
      turner_(rotation == nullptr ? kNone : *rotation, columns, arena),
      steps_(steps),
      likenesses_(rotation != nullptr),
      x_((kRing + (likenesses_ ? rows : 0)) * padded_, arena),
      partners_(kRing * padded_, arena),
      mean_(padded_, arena),
      prediction_(padded_, arena),
      like_(padded_, arena),
      zeros_(padded_, arena),
      contexts_(padded_, kLmsFirstRow, arena),
      signs_(padded_, arena) {
  // How much of the row above and of a likeness is believed at first.
  constexpr float kAbove[3] = {0.5f, 0.25f, 0.0f}, kLike[3] = {0.0f, 0.5f, 1.0f};
  for (size_t i = 0; i < (likenesses_ ? 3 : 1); ++i) {
    for (ArenaVector<float>& weights : learned_[i].weights) {
      weights = ArenaVector<float>(padded_, arena);
    }
    learned_[i].weights[0].assign(padded_, kAbove[i]);
    learned_[i].weights[2].assign(padded_, kLike[i]);
    learned_[i].sigma = ArenaVector<float>(padded_, arena);
  }
}

LmsChannels LmsModel::Channels() {
  Learned& learned = learned_[which_];
  const uint64_t place = row_ + kRing;
  LmsChannels channels;
  channels.padded = padded_;
  channels.x1 = X(place - 1);
  channels.p1 = Partners(place - 1);
  channels.x2 = which_ == 0 ? X(place - 2) : like_.data();
  channels.p2 = which_ == 0 ? Partners(place - 2) : zeros_.data();
  for (size_t w = 0; w < 5; ++w) channels.weights[w] = learned.weights[w].data();
  channels.mean = mean_.data();
  channels.sigma = learned.sigma.data();
  channels.prediction = prediction_.data();
  return channels;
}

void LmsModel::Predict(const Likeness& like) {
  which_ = like.likeness == 0 ? 0 : like.likeness < kPoorLikeness ? 2 : 1;
  if (which_ != 0) {
    turner_.Turn(steps_.Up(row_, like.distance), X(row_ + kRing - like.distance), like_.data());
  }
  LmsPredict(Channels(), contexts_.data(), signs_.data());
  if (row_ == 0) std::fill(contexts_.begin(), contexts_.end(), kLmsFirstRow);
}

void LmsModel::Learn(const std::byte* values) {
  const LmsChannels channels = Channels();
  float* x = X(row_ + kRing);
  LmsLoad(values, columns_, bfloat_, scale_, x, padded_);
  Learned& learned = learned_[which_];
  ++learned.rows;
  const auto rate = [](uint64_t rows, uint64_t most) {
    return 1.0f / static_cast<float>(std::min(rows, most));
  };
  LmsUpdate(channels, x, rate(learned.rows, 16), rate(row_ + 1, 32));
  if (pairing_ != 0) CopyPartners(pairing_, x, columns_, Partners(row_ + kRing));
  ++row_;
}

}  // namespace kv
