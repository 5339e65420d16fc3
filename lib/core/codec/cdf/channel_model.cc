// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The model behind cdf frames (channel_model.h). It keeps the taps of recent rows as pointers,
// predicts with regress.h, tracks how wide errors are (per channel, per similarity class, and
// within the row) and decides when to solve again. FORMAT.md, "State" to "A row", is the
// specification.

#include "lib/core/codec/cdf/channel_model.h"

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

// The rates are part of the grammar (FORMAT.md, "State" and "A row"): changing one changes the
// archive format.
constexpr float kDecay = 0.9995f;  // forgetting per row
constexpr float kErrorRate = 0.05f, kVarianceRate = 0.04f, kPowerRate = 0.02f;
constexpr float kSpreadRate = 0.1f, kLeastSpread = 1.0f / 1024;
// A logistic distribution of scale 1 has a standard deviation of 1.81, whose inverse is 0.55. The
// factor is lower because real errors have longer tails.
constexpr float kScaleOfDeviation = 0.53f;
constexpr float kTinyVariance = 1e-12f;
// The estimate of a row's surprise starts with this many channels of average surprise, so that the
// first channels do not swing the scale.
constexpr float kCalm = 8.0f;
// An outlier counts at most this many times its expected square.
constexpr float kMostSurprise = 25.0f;

// Rows as many as these are as good as a start: 4 to 32 give the same sizes within 0.2 %.
constexpr uint64_t kStartRows = 16;

// Solving takes most of the time, and weights settle, so solutions become rarer as rows are added.
// The rows before which they happen are part of the grammar.
uint64_t RowsPerSolution(uint64_t rows) {
  return std::clamp<uint64_t>(rows / 16, 1, kMaxRegressRows);
}

}  // namespace

ChannelModel::ChannelModel(ChannelShape shape, Arena* arena)
    : shape_(std::move(shape)),
      rotator_(shape_.rotation, shape_.columns, arena),
      x_(arena),
      ones_(arena),
      predictions_(arena),
      state_(arena),
      taps_(arena),
      targets_(arena) {
  // Channels are worked on in groups of kRegressLanes, one lane each.
  regress_.groups = (shape_.columns + kRegressLanes - 1) / kRegressLanes;
  padded_ = regress_.groups * kRegressLanes;
  left_ = shape_.near;
  for (const uint16_t distance : shape_.far) left_ = std::max<uint64_t>(left_, distance);
  // Taps left of column 0 and above row 0 read the zeros stored before the first row.
  left_ = std::max(left_, kHistory * padded_);
  x_.assign(left_ + shape_.rows * padded_, 0);
  const auto make = [&](Rows& rows) {
    rows.stride = padded_;
    rows.values = ArenaVector<float>((kMaxRegressRows + kHistory) * padded_, arena);
  };
  make(partners_);
  const bool rotates = !shape_.rotation.angles.empty();
  if (rotates) {
    make(cosines_);
    make(sines_);
  }
  if (shape_.has_earlier_rows) {
    make(like_);
    make(unlike_);
  }
  KV_ASSERT(shape_.hints <= kMaxHints);
  for (uint32_t i = 0; i < shape_.hints; ++i) make(hints_[i]);
  ones_.assign(padded_, 1);
  predictions_.assign(padded_, 0);
  spread_ = kSimilarityLimits;

  const size_t models = shape_.has_earlier_rows ? 2 : 0;
  // Taps are two of the similar row, x and p one and two rows up, the constant 1, cos and sin.
  near_tap_ = shape_.hints + models + (rotates ? 7 : 5);
  near_in_group_ = std::min<size_t>(shape_.near, kRegressLanes - 1);
  const size_t n = near_tap_ + shape_.near + shape_.far.size();
  // Four models of growing size compete in each column. The best mix is found by their past errors,
  // so that short chunks rely on the small ones until the large ones have learnt.
  regress_.taps = n;
  regress_.sizes = {models > 0 ? models : 3, near_tap_, std::min(n, near_tap_ + 8), n};
  // Near channels of the same group are not known when a group is begun; Expect adds them last, one
  // by one. Encoders, who know them, add them in the same order.
  for (size_t tap = 0; tap < n; ++tap) {
    if (tap < near_tap_ || tap >= near_tap_ + near_in_group_) ahead_order_.push_back(tap);
  }
  whole_order_ = ahead_order_;
  for (size_t tap = near_tap_ + near_in_group_; tap-- > near_tap_;) whole_order_.push_back(tap);
  if (shape_.hints > 0) regress_.sizes = {0, 1 + shape_.hints, near_tap_, n};
  if (shape_.forecast) regress_.sizes = {std::max<size_t>(models, 1), models + 2, near_tap_, n};
  AllocateState();
  if (shape_.start != nullptr) Begin(*shape_.start);
}

void ChannelModel::AllocateState() {
  const size_t n = regress_.taps;
  const uint64_t per_lane = RegressPairs(n) + n + kRegressModels * n + n + kRegressModels + 2;
  state_.assign(per_lane * padded_ + kRegressLanes, 0);
  // Vectors are loaded from addresses that are multiples of a whole group.
  float* at = state_.data();
  while (reinterpret_cast<uintptr_t>(at) % (kRegressLanes * sizeof(float)) != 0) ++at;
  const auto take = [&](float*& array, uint64_t size) {
    array = at;
    at += size * padded_;
  };
  take(regress_.products, RegressPairs(n));
  take(regress_.moments, n);
  take(regress_.weights, kRegressModels * n);
  take(regress_.combined, n);
  take(regress_.errors, kRegressModels);
  take(regress_.variance, 1);
  take(regress_.power, 1);
  std::fill_n(regress_.variance, padded_, shape_.first_deviation * shape_.first_deviation);
  taps_.resize(kMaxRegressRows * n);
  targets_.resize(kMaxRegressRows);
  roots_.resize(kMaxRegressRows);
}

ArenaVector<float> ChannelModel::ListTapPowers(const float* powers) const {
  ArenaVector<float> partners(padded_, 0.0f), all(regress_.taps * padded_, 0.0f);
  CopyPartners(shape_.rotation.distance, powers, shape_.columns, partners.data());
  float* to = all.data();
  const auto add = [&](const float* from, uint64_t shift = 0) {
    if (shift < shape_.columns) std::copy_n(from, shape_.columns - shift, to + shift);
    to += padded_;
  };
  const auto fill = [&](float power) {
    std::fill_n(to, shape_.columns, power);
    to += padded_;
  };
  // The order is that of MakeTaps.
  for (int i = 0; shape_.has_earlier_rows && i < 2; ++i) add(powers);
  fill(1);
  add(powers);
  add(powers);
  add(partners.data());
  for (int i = 0; !shape_.rotation.angles.empty() && i < 2; ++i) fill(0.5f);
  add(powers);
  add(partners.data());
  for (uint32_t distance = 1; distance <= shape_.near; ++distance) add(powers, distance);
  for (const uint16_t distance : shape_.far) add(powers, distance);
  return all;
}

void ChannelModel::Begin(const ChannelStart& start) {
  KV_ASSERT(shape_.forecast && shape_.hints == 1);
  const uint64_t columns = shape_.columns, n = regress_.taps;
  const uint64_t skipped = shape_.has_earlier_rows ? 0 : 2;
  KV_ASSERT(start.weights.size() == (skipped + n) * columns);
  const ArenaVector<float> powers = ListTapPowers(start.powers.data());
  for (uint64_t c = 0; c < columns; ++c) {
    const uint64_t group = c / kRegressLanes, lane = c % kRegressLanes;
    for (uint64_t i = 0; i < n; ++i) {
      const float product = powers[i * padded_ + c] * static_cast<float>(kStartRows);
      const uint64_t diagonal = RegressPairs(i) + i;
      regress_.products[(group * RegressPairs(n) + diagonal) * kRegressLanes + lane] = product;
      regress_.moments[(group * n + i) * kRegressLanes + lane] =
          product * start.weights[(skipped + i) * columns + c];
    }
    regress_.variance[c] = start.variances[c];
    regress_.power[c] = start.powers[c];
    for (uint64_t model = 0; model < kRegressModels; ++model) {
      regress_.errors[(group * kRegressModels + model) * kRegressLanes + lane] =
          start.variances[c] * start.relative_errors[model];
    }
  }
  spread_ = start.spreads;
  known_ = kStartRows;
  samples_ = static_cast<float>(kStartRows);
  RegressSolve(regress_, taps_.data(), targets_.data(), roots_.data(), 0, 1.0f, samples_);
}

ChannelStart ChannelModel::MakeStart() const {
  KV_ASSERT(shape_.forecast && shape_.has_earlier_rows);
  const uint64_t columns = shape_.columns, n = regress_.taps;
  ChannelStart start;
  start.near = shape_.near;
  start.far = shape_.far;
  start.rotation = shape_.rotation;
  start.spreads = spread_;
  start.variances.assign(regress_.variance, regress_.variance + columns);
  start.powers.assign(regress_.power, regress_.power + columns);
  start.weights.resize(n * columns);
  for (uint64_t c = 0; c < columns; ++c) {
    const uint64_t group = c / kRegressLanes, lane = c % kRegressLanes;
    const auto at = [&](uint64_t model) { return group * kRegressModels + model; };
    for (uint64_t i = 0; i < n; ++i) {
      start.weights[i * columns + c] =
          regress_.weights[(at(kRegressModels - 1) * n + i) * kRegressLanes + lane];
    }
    for (uint64_t model = 0; model < kRegressModels; ++model) {
      start.relative_errors[model] += regress_.errors[at(model) * kRegressLanes + lane] /
                                      (regress_.variance[c] + kTinyVariance) /
                                      static_cast<float>(columns);
    }
  }
  return start;
}

uint64_t ChannelModel::lanes(uint64_t group) const {
  return std::min<uint64_t>(kRegressLanes, shape_.columns - group * kRegressLanes);
}

// Lists the taps of the row that begins, the most informative first: model k uses the first
// regress_.sizes[k] of them. This order is the grammar's.
void ChannelModel::MakeTaps() {
  const float** tap = taps_.data() + pending_ * regress_.taps;
  const auto add_hints = [&] {
    if (shape_.hints > 0) *tap++ = ones_.data();
    for (uint32_t i = 0; i < shape_.hints; ++i) *tap++ = hints_[i].Row(pending_);
  };
  if (!shape_.forecast) add_hints();
  if (shape_.has_earlier_rows) {
    *tap++ = like_.Row(pending_);
    *tap++ = unlike_.Row(pending_);
  }
  if (shape_.forecast) add_hints();
  *tap++ = row_ - padded_;
  *tap++ = partners_.Row(kHistory + pending_ - 1);
  if (shape_.hints == 0) *tap++ = ones_.data();
  if (!shape_.rotation.angles.empty()) {
    *tap++ = cosines_.Row(pending_);
    *tap++ = sines_.Row(pending_);
  }
  *tap++ = row_ - 2 * padded_;
  *tap++ = partners_.Row(kHistory + pending_ - 2);
  for (uint32_t distance = 1; distance <= shape_.near; ++distance) *tap++ = row_ - distance;
  for (const uint16_t distance : shape_.far) *tap++ = row_ - distance;
  targets_[pending_] = row_;
}

void ChannelModel::BeginRow(uint32_t similarity, uint64_t distance, const float* const* hints) {
  similarity_ = similarity;
  row_ = X(rows_);
  if (!shape_.rotation.angles.empty()) {
    rotator_.Angles(shape_.steps[rows_], cosines_.Row(pending_), sines_.Row(pending_));
  }
  if (shape_.has_earlier_rows) {
    // Rows with a good match and rows with a poor one deserve different weights, so each quality
    // has its own tap, and the other tap is 0.
    float *like = like_.Row(pending_), *unlike = unlike_.Row(pending_);
    std::fill_n(like, padded_, 0.0f);
    std::fill_n(unlike, padded_, 0.0f);
    if (similarity > 0) {
      rotator_.Rotate(shape_.steps.Up(rows_, distance), X(rows_ - distance),
                      similarity < kWeakSimilarity ? like : unlike);
    }
  }
  for (uint32_t i = 0; i < shape_.hints; ++i)
    std::copy_n(hints[i], shape_.columns, hints_[i].Row(pending_));
  MakeTaps();
  RegressCombine(regress_);
  surprise_ = surprise_count_ = kCalm;
  row_spread_ = 0;
}

void ChannelModel::BeginGroup(uint64_t group) { PrepareGroup(group, ahead_order_); }

void ChannelModel::SetRow(const float* x, float* means, float* inverse_scales) {
  std::copy_n(x, shape_.columns, row_);
  for (uint64_t group = 0; group < groups(); ++group) {
    PrepareGroup(group, whole_order_);
    const uint64_t channel = group * kRegressLanes, count = lanes(group);
    for (uint64_t lane = 0; lane < count; ++lane) {
      const float sum = ahead_[lane];
      predictions_[channel + lane] = sum < kRegressLimit && sum > -kRegressLimit ? sum : 0;
    }
    std::copy_n(predictions_.data() + channel, count, means + channel);
    std::copy_n(inverse_scales_.data(), count, inverse_scales + channel);
    EndGroup();
  }
}

// Sums the products of weights and taps in `order` for all channels of a group, and computes how
// narrow their distributions are.
void ChannelModel::PrepareGroup(uint64_t group, const std::vector<size_t>& order) {
  group_ = group;
  combined_ = regress_.combined + group * regress_.taps * kRegressLanes;
  ahead_.fill(0);
  RegressAdd(regress_, group, Taps(), order.data(), order.size(), ahead_.data());
  // The surprise so far scales the rest of the row: a row that was hard to predict in its first
  // channels is hard in all.
  const float factor = spread_[similarity_] * (surprise_ / surprise_count_);
  const float* variance = regress_.variance + group * kRegressLanes;
  for (size_t lane = 0; lane < kRegressLanes; ++lane) {
    inverse_scales_[lane] =
        1.0f / (kScaleOfDeviation * std::sqrt(variance[lane] * factor + kTinyVariance));
  }
}

void ChannelModel::EndGroup() {
  const float* variance = regress_.variance + group_ * kRegressLanes;
  for (uint64_t lane = 0; lane < lanes(group_); ++lane) {
    const uint64_t channel = group_ * kRegressLanes + lane;
    const float error = row_[channel] - predictions_[channel];
    const float squares = error * error / (variance[lane] + kTinyVariance);
    row_spread_ += std::min(squares, kMostSurprise);
    surprise_ += std::min(squares / spread_[similarity_], kMostSurprise);
    surprise_count_ += 1;
  }
}

void ChannelModel::EndRow() {
  CopyPartners(shape_.rotation.distance, row_, shape_.columns, partners_.Row(kHistory + pending_));
  ++rows_;
  ++known_;
  float& spread = spread_[similarity_];
  if (known_ > 1) {
    spread += (row_spread_ / static_cast<float>(shape_.columns) - spread) * kSpreadRate;
    spread = std::max(spread, kLeastSpread);
  }
  roots_[pending_] = std::sqrt(1.0f / spread);
  // Averages over the first few values change fast: until 1 / rows falls below the usual rate, they
  // are plain means.
  const auto rate = [&](float least, uint64_t before) {
    return std::max(least, 1.0f / static_cast<float>(known_ + before));
  };
  RegressLearn(regress_, Taps(), row_, predictions_.data(),
               {rate(kErrorRate, 0), rate(kVarianceRate, 2), rate(kPowerRate, 0), 1.0f / spread});
  ++pending_;
  if (pending_ >= RowsPerSolution(known_)) Solve();
}

void ChannelModel::Solve() {
  float decay = 1;
  for (uint64_t row = 0; row < pending_; ++row) decay *= kDecay;
  samples_ = samples_ * decay + static_cast<float>(pending_);
  RegressSolve(regress_, taps_.data(), targets_.data(), roots_.data(), pending_, decay, samples_);
  // The two last rows of partners stay: they are taps of the rows to come.
  for (uint64_t row = 0; row < kHistory; ++row)
    std::copy_n(partners_.Row(pending_ + row), padded_, partners_.Row(row));
  pending_ = 0;
}

}  // namespace kv
