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

// What a coder that knows only this much about a value would need, in bits per value.
struct EntropyModel {
  std::string_view name;
  std::string_view summary;
  double bits = 0;
  // What describing the model's own numbers takes at least, by their count: half the logarithm of
  // the number of values for each. Small tensors fit any large table; this is what keeps them
  // honest. 0 for adaptive models, which learn as they go and count that in `bits`.
  double table_bits = 0;

  double total_bits() const { return bits + table_bits; }
};

// Walks 16-bit floats row by row ([token][channel]) and prices them under every model of
// `Models()`.
class EntropyModels {
 public:
  // `tokens` in all: what decides whether counting by channel pays.
  EntropyModels(DType dtype, uint64_t channels, uint64_t tokens);

  // The next tokens.
  void Add(ByteSpan rows, uint64_t tokens);

  // In the order of the text below; models that need what the values lack are left out.
  //   fields            sign, exponent and mantissa, each on its own
  //   byte_planes       high and low byte
  //   rotated_planes    the same with the sign moved to the end
  //   sign_exponent     sign and exponent together, the mantissa as it is
  //   channel_delta     byte planes, the high one minus that of the channel before (channel_xor)
  //   token_delta       byte planes, the high one minus that of the token before (token_xor)
  //   per_channel_512   the high byte by channel, adaptive, frames of 512 tokens
  //   per_channel       the same over all tokens
  //   previous_token    sign, exponent and two mantissa bits, given the sign and exponent of the
  //                     token before
  //   gaussian          each channel a normal distribution of its own mean and deviation
  std::vector<EntropyModel> Models() const;

  // How many bits per value the best linear prediction from the token before would save, if values
  // were gaussian.
  double autoregressive_gain_bits() const;

  uint64_t values() const { return values_; }
  // How often each 16-bit pattern occurs.
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
  // How often high bytes follow each other: [before][this], along tokens and along channels.
  std::vector<uint64_t> token_pairs_, channel_pairs_;
  std::vector<uint16_t> previous_;
  // Per channel, [channel][high byte]; empty when they would dwarf the values.
  std::vector<uint16_t> frame_counts_;
  std::vector<uint32_t> channel_counts_;
  double frame_bits_ = 0;  // of closed frames
  // Per channel.
  std::vector<float> floats_, previous_floats_, first_floats_;
  std::vector<double> sums_, squares_, lagged_, exponents_;
};

}  // namespace kv::analysis
