// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// Predicts every channel of a row by normalised least mean squares (LMS) from five taps: the
// channel and its rotary partner one and two rows up, and the channel's mean. All operations are on
// floats, in a fixed order, none fused, because archives depend on every bit of them.
// lib/core/codec/context/FORMAT.md spells them out.
namespace kv {

// A context combines 48 half octaves of the prediction's magnitude with 7 classes of certainty, the
// ratio of magnitude and error. The first row has its own context.
constexpr uint32_t kLmsContexts = 48 * 7 + 1;
constexpr uint16_t kLmsFirstRow = 48 * 7;
// Arrays are padded to a multiple of this many floats, so that kernels need no tail.
constexpr size_t kLmsPadding = 16;

// The state of all channels. Each array has one float per channel.
struct LmsChannels {
  size_t padded = 0;          // length of the arrays, with padding
  const float* x1 = nullptr;  // value one row up
  const float* p1 = nullptr;  // the partner's value one row up
  const float* x2 = nullptr;  // value two rows up
  const float* p2 = nullptr;  // the partner's value two rows up
  float* weights[5] = {};     // weights of x1, p1, x2, p2 and the mean
  float* mean = nullptr;
  float* sigma = nullptr;  // running mean of the prediction's absolute error
  float* prediction = nullptr;
};

// Computes predictions, and from them a context and a sign (0 or 1) per channel.
void LmsPredict(const LmsChannels& channels, uint16_t* contexts, uint8_t* signs) noexcept;
// Updates weights, means and deviations with the actual row `x`. The rates fall with the row
// number.
void LmsUpdate(const LmsChannels& channels, const float* x, float sigma_rate,
               float mean_rate) noexcept;
// Converts `count` f16 or bf16 values (little-endian, any alignment) to floats and multiplies them
// by `scale`. For f16 the scale must include a factor of 2^112, because the conversion only shifts
// bits. Values that are not finite, and those from `count` up to `padded`, become 0.
void LmsLoad(const std::byte* values, size_t count, bool bfloat, float scale, float* x,
             size_t padded) noexcept;

namespace ref {
void LmsPredict(const LmsChannels& channels, uint16_t* contexts, uint8_t* signs) noexcept;
void LmsUpdate(const LmsChannels& channels, const float* x, float sigma_rate,
               float mean_rate) noexcept;
void LmsLoad(const std::byte* values, size_t count, bool bfloat, float scale, float* x,
             size_t padded) noexcept;
}  // namespace ref

}  // namespace kv
