// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/codec/like/likeness.h"
#include "lib/core/kernels/regress.h"

// What the channels of a row are expected to be: each is regressed on an earlier row that the
// encoder chose because this one resembles it (tokens come back), on itself and its rotary partner
// one and two rows up, on the turns of that rotation, and on channels to its left.
namespace kv {

struct ChannelShape {
  uint64_t rows = 0, columns = 0;
  Rotation rotation;
  bool likenesses = false;    // whether any row has one
  uint32_t near = 0;          // channels 1 ... near to the left
  std::vector<uint16_t> far;  // and these many, each more than `near`
  float first_deviation = 0;  // of the values of the first row from 0
};

class ChannelModel {
 public:
  static constexpr uint32_t kMaxNear = 32, kMaxFar = 16;
  static constexpr uint64_t kMaxColumns = 1 << 14;

  explicit ChannelModel(ChannelShape shape);
  // Predictions point into the object.
  ChannelModel(const ChannelModel&) = delete;
  ChannelModel& operator=(const ChannelModel&) = delete;

  uint64_t groups() const { return regress_.groups; }
  // Channels of a group that exist.
  uint64_t lanes(uint64_t group) const;

  // Begins a row that is like the row `distance` rows up (class 0: like none); then group after
  // group, channel after channel:
  void BeginRow(uint32_t likeness, uint64_t distance);
  //   what is common to the group, before its first channel,
  void BeginGroup(uint64_t group);
  //   the prediction of a channel and how far off it may be (the inverse of the scale of a logistic
  //   distribution),
  struct Expected {
    float mean, inverse_scale;
  };
  Expected Expect(uint64_t lane) const {
    float sum = ahead_[lane];
    const float* x = row_ + group_ * kRegressLanes + lane;
    const float* weights = combined_ + lane;
    for (size_t tap = near_tap_ + serial_; tap-- > near_tap_;)
      sum += weights[tap * kRegressLanes] * *(x - (tap - near_tap_ + 1));
    return {sum < kRegressLimit && sum > -kRegressLimit ? sum : 0, inverse_scales_[lane]};
  }
  //   and what it came to.
  void Set(uint64_t lane, float mean, float value) {
    const uint64_t channel = group_ * kRegressLanes + lane;
    predictions_[channel] = mean;
    row_[channel] = value;
  }
  void EndGroup();
  void EndRow();

 private:
  // Rows of one kind of tap that are not in any solution yet, after kHistory that are.
  struct Rows {
    uint64_t stride = 0;
    std::vector<float> values;
    float* Row(uint64_t row) { return values.data() + row * stride; }
  };
  static constexpr uint64_t kHistory = 2;

  void AllocateState();
  void MakeTaps();
  void Solve();
  float* X(uint64_t row) { return x_.data() + left_ + row * padded_; }
  RegressRow Taps() const { return taps_.data() + pending_ * regress_.taps; }

  ChannelShape shape_;
  Turner turner_;
  uint64_t padded_ = 0;  // columns, up to whole groups
  uint64_t left_ = 0;    // zeros before the first row
  std::vector<float> x_;
  Rows partners_, like_, unlike_, cosines_, sines_;
  std::vector<float> ones_, predictions_;
  std::vector<float> state_;  // what regress_ points to
  Regress regress_;
  size_t near_tap_ = 0, serial_ = 0;
  std::vector<size_t> ahead_order_;
  std::vector<const float*> taps_, targets_;  // of the rows that are not in any solution yet
  std::vector<float> roots_;

  uint64_t rows_ = 0;     // that are complete
  uint64_t pending_ = 0;  // of them, those that are in no solution yet
  float samples_ = 0;
  std::array<float, kLikenessClasses> spread_{};  // of squared errors, by class
  uint32_t likeness_ = 0;                         // of the row
  float* row_ = nullptr;                          // the row
  uint64_t group_ = 0;
  const float* combined_ = nullptr;  // of the group
  std::array<float, kRegressLanes> ahead_{}, inverse_scales_{};
  float surprise_ = 0, surprise_count_ = 0;  // of the row so far
  float row_spread_ = 0;
};

}  // namespace kv
