// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

// Normalised LMS prediction of every channel of a row from the two rows before it: five taps per
// channel (the channel and its rotary partner one and two rows up, and the channel's mean). Plain
// float operations in a fixed order, none fused: archives depend on every bit of them.
// lib/core/codec/lms/FORMAT.md spells them out.
namespace kv {

// Contexts are 7 classes of certainty for each of 48 half octaves of the prediction; one more is
// for the first row.
constexpr uint32_t kLmsContexts = 48 * 7 + 1;
constexpr uint16_t kLmsFirstRow = 48 * 7;
// Arrays are this many floats longer than they must be, up to a multiple of it.
constexpr size_t kLmsPadding = 16;

// One float per channel and array.
struct LmsChannels {
  size_t padded = 0;          // channels, a multiple of kLmsPadding
  const float* x1 = nullptr;  // one row up, and the partner there
  const float* p1 = nullptr;
  const float* x2 = nullptr;  // two rows up
  const float* p2 = nullptr;
  float* weights[5] = {};
  float* mean = nullptr;
  float* sigma = nullptr;  // of the prediction's error
  float* prediction = nullptr;
};

// Predictions, and what they say: a context and a sign (0 or 1) per channel.
void LmsPredict(const LmsChannels& channels, uint16_t* contexts, uint8_t* signs) noexcept;
// Learns from the row that came, with the rates of this row.
void LmsUpdate(const LmsChannels& channels, const float* x, float sigma_rate,
               float mean_rate) noexcept;
// f16 or bf16 values times `scale` (a power of two times what f16 needs); what is not finite is 0.
// The rest up to `padded` is 0.
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
