// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/core/codec/context/earlier_rows.h"
#include "lib/core/kernels/regress.h"

// Predicts the channels of a row. Each channel is regressed on an earlier row that this one
// resembles (repeated tokens yield similar rows), on itself and its rotary partner one and two rows
// up, on the sine and cosine of that rotation, and on channels to its left. Predictions from
// outside the chunk come in as hints. FORMAT.md in this folder has every operation.
namespace kv {

// A profile holds what a model that also gets a forecast knows before its first row.
struct ChannelStart {
  uint32_t near = 0;          // as in ChannelShape
  std::vector<uint16_t> far;  // as in ChannelShape
  Rotation rotation;
  RowSteps steps;                        // positions of the rows
  std::vector<float> weights;            // [tap][column]: of the taps of a chunk with earlier rows
  std::vector<float> variances, powers;  // per column
  std::array<float, kSimilarityClasses> spreads{};      // squared errors, per similarity class
  std::array<float, kRegressModels> relative_errors{};  // per model, relative to the variance
};
// Returns the number of taps that a chunk with forecast and earlier rows has.
constexpr uint64_t CountFrameTaps(bool rotates, uint64_t near, uint64_t far) {
  return 8 + (rotates ? 2 : 0) + near + far;
}
// Returns true for the taps whose values do not depend on the rows' scale: the 1 and, if the rows
// are rotated, cosine and sine.
constexpr bool IsConstantTap(uint64_t tap, bool rotates) {
  return tap == 2 || (rotates && (tap == 6 || tap == 7));
}

struct ChannelShape {
  uint64_t rows = 0, columns = 0;
  Rotation rotation;
  RowSteps steps;                 // positions of the rows; they outlive the model
  bool has_earlier_rows = false;  // true if any row has a similar earlier row
  uint32_t near = 0;              // number of channels directly to the left that are taps
  std::vector<uint16_t> far;      // distances of further taps to the left, each more than `near`
  float first_deviation = 0;      // root mean square of the first row's values
  // number of hint rows passed to BeginRow
  uint32_t hints = 0;
  bool forecast = false;                // the only hint is a RowForecast's prediction
  const ChannelStart* start = nullptr;  // what is known beforehand; only with a forecast
};

// Converts a half float to what models see: scaled by a power of two, and 0 if it is not finite or
// larger than the frame's largest exponent allows.
class ModelValue {
 public:
  ModelValue(bool bfloat, float scale)
      : shift_(bfloat ? 16 : 13), exponents_(bfloat ? 0x7f80 : 0x7c00), scale_(scale) {}
  float operator()(uint16_t half) const {
    if ((half & exponents_) == exponents_) return 0;
    const float value =
        std::bit_cast<float>((half & 0x8000u) << 16 | (half & 0x7fffu) << shift_) * scale_;
    return std::abs(value) < kRegressLimit ? value : 0;
  }

 private:
  uint32_t shift_, exponents_;
  float scale_;
};

class ChannelModel {
 public:
  static constexpr uint32_t kMaxNear = 32, kMaxFar = 16, kMaxHints = 4;
  static constexpr uint64_t kMaxColumns = kMaxComparedColumns;

  explicit ChannelModel(ChannelShape shape, Arena* arena = nullptr);
  // Neither copied nor moved: taps point into the object.
  ChannelModel(const ChannelModel&) = delete;
  ChannelModel& operator=(const ChannelModel&) = delete;

  uint64_t groups() const { return regress_.groups; }
  // Returns the number of channels in a group; only the last group may have fewer than
  // kRegressLanes.
  uint64_t lanes(uint64_t group) const;

  // Begins a row that resembles the row `distance` rows up; class 0 means no similar row. Each hint
  // has as many values as there are columns. After it, decoders call for each group BeginGroup, for
  // each channel of the group Expect and Set, and then EndGroup; EndRow ends the row.
  void BeginRow(uint32_t similarity, uint64_t distance, const float* const* hints = nullptr);
  // Gives the hint of columns [begin, begin + count), which BeginRow may not have known. `hint`
  // is a whole row.
  void ExtendHint(const float* hint, uint64_t begin, uint64_t count) {
    std::copy_n(hint + begin, count, hints_[0].Row(pending_) + begin);
  }
  // Sums the taps that do not depend on other channels of the group.
  void BeginGroup(uint64_t group);
  // Predicts a channel and the sharpness of its logistic distribution (the inverse of its scale).
  struct Expected {
    float mean, inverse_scale;
  };
  Expected Expect(uint64_t lane) const {
    float sum = ahead_[lane];
    const float* x = row_ + group_ * kRegressLanes + lane;
    const float* weights = combined_ + lane;
    for (size_t tap = near_tap_ + near_in_group_; tap-- > near_tap_;)
      sum += weights[tap * kRegressLanes] * *(x - (tap - near_tap_ + 1));
    return {sum < kRegressLimit && sum > -kRegressLimit ? sum : 0, inverse_scales_[lane]};
  }
  // Takes the value that the channel turned out to have.
  void Set(uint64_t lane, float mean, float value) {
    const uint64_t channel = group_ * kRegressLanes + lane;
    predictions_[channel] = mean;
    row_[channel] = value;
  }
  void EndGroup();
  void EndRow();

  // Serves encoders, which know all values of a row: called after BeginRow instead of the calls per
  // group, it sets `means` and `inverse_scales` to what Expect would return for each channel.
  void SetRow(const float* x, float* means, float* inverse_scales);

  // Returns what the rows so far have taught the model, which has a forecast and earlier rows.
  ChannelStart MakeStart() const;

 private:
  // Rows of one kind of tap: kHistory rows that are already part of the solution, then the pending
  // ones.
  struct Rows {
    uint64_t stride = 0;
    ArenaVector<float> values;
    float* Row(uint64_t row) { return values.data() + row * stride; }
  };
  static constexpr uint64_t kHistory = 2;

  void AllocateState();
  // Takes the start's weights as if kStartRows rows had taught them.
  void Begin(const ChannelStart& start);
  // Writes the mean square of each tap, [tap][column], if the columns have these powers.
  ArenaVector<float> ListTapPowers(const float* powers) const;
  void MakeTaps();
  void PrepareGroup(uint64_t group, const std::vector<size_t>& order);
  // Adds the pending rows to the sums, each weighted by the square of its root, decays older rows,
  // and solves all models again.
  void Solve();
  float* X(uint64_t row) { return x_.data() + left_ + row * padded_; }
  RegressRow Taps() const { return taps_.data() + pending_ * regress_.taps; }

  ChannelShape shape_;
  Rotator rotator_;
  uint64_t padded_ = 0;  // columns, rounded up to whole groups
  uint64_t left_ = 0;    // number of zeros before the first row
  ArenaVector<float> x_;
  Rows partners_, like_, unlike_, cosines_, sines_;
  std::array<Rows, kMaxHints> hints_;
  ArenaVector<float> ones_, predictions_;
  ArenaVector<float> state_;  // memory of regress_
  Regress regress_;
  size_t near_tap_ = 0;
  size_t near_in_group_ = 0;  // near channels that may lie in the same group, summed one by one
  // orders of summation: without the near channels of the group, and with them
  std::vector<size_t> ahead_order_, whole_order_;
  ArenaVector<const float*> taps_, targets_;  // per row pending for the solution
  std::vector<float> roots_;

  uint64_t rows_ = 0;     // complete rows
  uint64_t known_ = 0;    // rows whose knowledge the model has, those of the start included
  uint64_t pending_ = 0;  // complete rows that are not yet in the solution
  float samples_ = 0;
  std::array<float, kSimilarityClasses> spread_{};  // squared errors, per similarity class
  uint32_t similarity_ = 0;                         // similarity class of the current row
  float* row_ = nullptr;                            // the current row
  uint64_t group_ = 0;
  const float* combined_ = nullptr;  // weights of the current group
  std::array<float, kRegressLanes> ahead_{}, inverse_scales_{};
  float surprise_ = 0, surprise_count_ = 0;  // sums over the channels of the current row so far
  float row_spread_ = 0;
};

}  // namespace kv
