// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"

namespace kv::analysis {

// Bits per value of an ideal coder that knows a value's context only as far as the model says.
struct EntropyModel {
  std::string_view name;
  std::string_view summary;
  double bits = 0;
  // Least cost of describing the model's parameters: for each, half the logarithm of the number of
  // values. Without this cost a large table would fit any small tensor. 0 for adaptive models,
  // whose `bits` include the cost of learning.
  double table_bits = 0;

  double total_bits() const { return bits + table_bits; }
};

// Walks 16-bit floats row by row ([token][channel]) and prices them under every model of
// `Models()`.
class EntropyModels {
 public:
  // `tokens` is the total number of tokens; it decides whether counting per channel pays.
  EntropyModels(DType dtype, uint64_t channels, uint64_t tokens);

  // Adds the next tokens.
  void Add(ByteSpan rows, uint64_t tokens);

  // Returns the models in the order below, without those that do not apply to these values.
  //   fields            sign, exponent and mantissa, each on its own
  //   byte_planes       high and low byte
  //   rotated_planes    the same of words rotated left by one bit: the sign moves to the end
  //   sign_exponent     sign and exponent together, the mantissa as it is
  //   channel_delta     byte planes, the high one minus that of the channel before (channel_xor)
  //   token_delta       byte planes, the high one minus that of the token before (token_xor)
  //   per_channel_512   the high byte by channel, adaptive, in frames of 512 tokens
  //   per_channel       the same over all tokens
  //   previous_token    sign, exponent and two mantissa bits, given the sign and exponent of the
  //                     token before
  //   gaussian          a normal distribution for each channel, with its mean and deviation
  std::vector<EntropyModel> Models() const;

  // Returns how many bits per value the best linear prediction from the token before would save if
  // values were Gaussian.
  double autoregressive_gain_bits() const;

  uint64_t values() const { return values_; }
  // Returns the number of occurrences of each 16-bit pattern.
  const std::vector<uint64_t>& patterns() const { return patterns_; }

 private:
  void AddChannels(const uint16_t* row);
  void AddMoments(const uint16_t* row);
  void CloseFrame();
  double FrameBits() const;
  double WholeBits() const;
  double GaussianBits() const;

  bool bfloat_;
  uint32_t mantissa_bits_;
  uint64_t channels_, values_ = 0, tokens_ = 0, frame_tokens_ = 0;
  std::vector<uint64_t> patterns_;
  // Counts of pairs of successive high bytes, [before][this], along tokens and along channels.
  std::vector<uint64_t> token_pairs_, channel_pairs_;
  std::vector<uint16_t> previous_;
  // Counts per channel, [channel][high byte]; empty if they would take more memory than the values.
  std::vector<uint16_t> frame_counts_;
  std::vector<uint32_t> channel_counts_;
  double frame_bits_ = 0;  // bits of the frames completed so far
  // One value per channel.
  std::vector<float> floats_, previous_floats_, first_floats_;
  std::vector<double> sums_, squares_, lagged_, exponents_;
};

}  // namespace kv::analysis
