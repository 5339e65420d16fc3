// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lib/core/codec/like/likeness.h"
#include "lib/core/kernels/lms.h"

// The predictor of an lms frame: all channels of a row from the rows above, and, where the encoder
// says so, from an earlier row that this one resembles.
namespace kv {

constexpr uint32_t kMaxLmsExponent = 253;  // so that scales are normal floats
// 2^(127 - exponent): the largest values come to 1 or 2. For f16 times the 2^112 that LmsLoad
// wants, of which 2^15 belong to the bias.
float LmsScale(uint32_t largest_exponent);
// Of all values that are finite, from 1 to the most: others would leave the range of floats.
uint32_t LmsLargestExponent(ByteSpan values, bool bfloat);

class LmsModel {
 public:
  // `rotation` is that of likenesses; nullptr if no row has one. It must outlive the model.
  LmsModel(uint64_t rows, uint64_t columns, uint32_t pairing, uint32_t largest_exponent,
           bool bfloat, const Rotation* rotation);

  const uint16_t* contexts() const { return contexts_.data(); }
  const uint8_t* signs() const { return signs_.data(); }

  // The row above all rows is predicted as 0; contexts say that it is the first.
  void Predict(const Likeness& like);
  void Learn(const std::byte* values);

 private:
  // What is learned of rows that have no likeness, a poor one and a good one.
  struct Learned {
    std::vector<float> weights[5], sigma;
    uint64_t rows = 0;
  };
  LmsChannels Channels();
  // Rows by row + kRing, so that the two above the first have a place: all, or by turns.
  float* X(uint64_t place) { return x_.data() + (likenesses_ ? place : place % kRing) * padded_; }
  float* Partners(uint64_t place) { return partners_.data() + place % kRing * padded_; }

  static constexpr uint64_t kRing = 3;
  uint64_t columns_, padded_;
  uint32_t pairing_;
  bool bfloat_;
  float scale_;
  Turner turner_;
  bool likenesses_;
  std::vector<float> x_, partners_, mean_, prediction_, like_, zeros_;
  std::array<Learned, 3> learned_;
  size_t which_ = 0;  // of those, for the row
  std::vector<uint16_t> contexts_;
  std::vector<uint8_t> signs_;
  uint64_t row_ = 0;
};

}  // namespace kv
