// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include "lib/core/archive/regression_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "lib/core/archive/regression_rows.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/base/utf8.h"
#include "lib/core/codec/cdf/channel_model.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/kernels/panel.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

// Sums of products are floats for this many rows and then added to doubles.
constexpr uint64_t kFloatRows = 1024;
constexpr uint64_t kSumRows = 48;  // rows of sums that are added together
constexpr double kRidge = 1e-4;    // of each tap's variance
// With fewer bits a weight, one layer back serves better than two: on SmolLM2-135M's layer 12,
// 21 KiB give 8.675 bits a value of K by one and 8.75 by two, 45 KiB 8.57 and 8.516.
constexpr double kBitsForMoreLayers = 2.5;
constexpr uint32_t kMostLayersBack = 3;
// Fewest and most rows of all caches together that teach the regressions' starts.
constexpr uint64_t kLeastStartRows = 64, kStartRows = 4096;
// Share of the error's variance that rounding all weights of a column adds. The first guess gives
// about 3.4 bits a weight; less than the least would need integers beyond kMostRegressionWeight.
constexpr double kFirstNoise = 0.1, kLeastNoise = 0.02, kMostNoise = 16;
constexpr int kSizingRounds = 6;
// Rounding towards 0 by this much costs little error and makes the integers cheaper to code.
constexpr double kDeadZone = 0.1;

// Means and variances of features, and covariances of the first `taps` of them with all.
class Moments {
 public:
  Moments(uint64_t taps, uint64_t width)
      : taps_(taps),
        width_(width),
        block_(taps * width),
        sums_(taps * width),
        squares_(width),
        means_(width),
        shift_(width) {}

  // Rows are shifted by their first block's means, which keeps the sums of floats exact enough
  // where a channel's mean is far larger than its deviation.
  void Add(float* rows, uint64_t count) {
    if (rows_ == 0) SetShift(rows, count);
    for (uint64_t row = 0; row < count; ++row) {
      for (uint64_t i = 0; i < width_; ++i) {
        const double value = rows[row * width_ + i] -= shift_[i];
        means_[i] += value;
        squares_[i] += value * value;
      }
    }
    const auto step = static_cast<ptrdiff_t>(width_);
    for (uint64_t first = 0; first < taps_; first += kSumRows) {
      PanelAdd(block_.data() + first * width_ + first, width_, std::min(kSumRows, taps_ - first),
               width_ - first, {rows + first, step, 1, rows + first, step, count});
    }
    rows_ += count;
    pending_ += count;
    if (pending_ >= kFloatRows) Flush();
  }
  void Finish() {
    Flush();
    for (double& mean : means_) mean /= static_cast<double>(rows_);
  }
  double Mean(uint64_t i) const { return means_[i] + shift_[i]; }
  // Returns that of a tap and a feature that is not before it.
  double Covariance(uint64_t tap, uint64_t feature) const {
    return sums_[tap * width_ + feature] / static_cast<double>(rows_) -
           means_[tap] * means_[feature];
  }
  double Variance(uint64_t i) const {
    return squares_[i] / static_cast<double>(rows_) - means_[i] * means_[i];
  }
  uint64_t rows() const { return rows_; }

 private:
  void SetShift(const float* rows, uint64_t count) {
    for (uint64_t i = 0; i < width_; ++i) {
      for (uint64_t row = 0; row < count; ++row) shift_[i] += rows[row * width_ + i];
      shift_[i] /= static_cast<float>(count);
    }
  }
  void Flush() {
    for (uint64_t i = 0; i < sums_.size(); ++i) sums_[i] += block_[i];
    std::ranges::fill(block_, 0.0f);
    pending_ = 0;
  }

  const uint64_t taps_, width_;
  std::vector<float> block_;
  std::vector<double> sums_, squares_, means_;
  std::vector<float> shift_;
  uint64_t rows_ = 0, pending_ = 0;
};

// The Cholesky factor of a layer's covariances, for which a triangle of taps is solved already: an
// element is that of a tap and of a feature not before it. K and V use its first taps.
struct LayerFactor {
  uint64_t width = 0;
  std::vector<float> values;  // [tap][feature]

  const float* Row(uint64_t tap) const { return values.data() + tap * width; }
};

// One regression while its weights are being rounded.
struct Draft {
  Regression regression;
  std::shared_ptr<const LayerFactor> factor;
  uint64_t own_begin = 0;                              // first feature of its columns
  std::vector<double> error, tap_means, column_means;  // error: variance left by exact weights
  std::vector<int8_t> integers;
};

// Factors in doubles, in place, the covariances of `taps` taps with all features.
void FactorCovariances(uint64_t taps, uint64_t width, std::vector<double>& values) {
  for (uint64_t i = 0; i < taps; ++i) {
    double* row = values.data() + i * width;
    row[i] += row[i] * kRidge + 1e-12;
    for (uint64_t k = 0; k < i; ++k) {
      const double* above = values.data() + k * width;
      const double factor = above[i];
      for (uint64_t j = i; j < width; ++j) row[j] -= factor * above[j];
    }
    const double root = 1 / std::sqrt(std::max(row[i], 1e-12));
    for (uint64_t j = i; j < width; ++j) row[j] *= root;
  }
}

std::shared_ptr<const LayerFactor> MakeFactor(const LayerFeatures& features,
                                              const Moments& moments) {
  const uint64_t taps = features.CountTaps(true), width = features.width();
  std::vector<double> values(taps * width);
  for (uint64_t i = 0; i < taps; ++i) {
    for (uint64_t j = i; j < width; ++j) values[i * width + j] = moments.Covariance(i, j);
  }
  FactorCovariances(taps, width, values);
  auto factor = std::make_shared<LayerFactor>();
  factor->width = width;
  factor->values.assign(values.begin(), values.end());
  return factor;
}

Draft MakeDraft(const LayerFeatures& features, const Moments& moments,
                std::shared_ptr<const LayerFactor> factor, bool is_value) {
  Draft draft;
  draft.regression = features.MakeRegression(is_value);
  draft.factor = std::move(factor);
  draft.own_begin = features.own_begin(is_value);
  Regression& regression = draft.regression;
  for (uint64_t i = 0; i < features.CountTaps(is_value); ++i) {
    draft.tap_means.push_back(moments.Mean(i));
    regression.steps.push_back(ToUpperHalf(1 / draft.factor->Row(i)[i]));
  }
  for (uint64_t c = 0; c < regression.columns; ++c) {
    double error = moments.Variance(draft.own_begin + c);
    for (uint64_t i = 0; i < regression.taps(); ++i) {
      const double part = draft.factor->Row(i)[draft.own_begin + c];
      if (regression.FirstColumn(i) <= c) error -= part * part;
    }
    draft.error.push_back(std::max(error, 1e-9));
    draft.column_means.push_back(moments.Mean(draft.own_begin + c));
  }
  return draft;
}

// Rounds the weights so that they add `noise` of each column's error. Solving the upper triangle
// from the last tap on, each tap sees the rounded weights of those before it and makes up for them.
void Round(double noise, Draft& draft) {
  Regression& regression = draft.regression;
  const uint64_t taps = regression.taps(), columns = regression.columns;
  regression.scales.clear();
  for (const double error : draft.error) {
    const double count = static_cast<double>(std::max<uint64_t>(taps, 1));
    regression.scales.push_back(
        ToUpperHalf(static_cast<float>(std::sqrt(12 * noise * error / count))));
  }
  draft.integers.assign(taps * columns, 0);
  std::vector<float> rounded(taps * columns), row(columns), scales;
  for (const uint16_t scale : regression.scales) scales.push_back(BF16ToF32(scale));
  for (uint64_t i = taps; i-- > 0;) {
    const float* factors = draft.factor->Row(i);
    const uint64_t first = regression.FirstColumn(i);
    std::copy_n(factors + draft.own_begin, columns, row.data());
    for (uint64_t j = i + 1; j < taps; ++j) {
      const float factor = factors[j];
      const float* known = rounded.data() + j * columns;
      for (uint64_t c = first; c < columns; ++c) row[c] -= factor * known[c];
    }
    const float step = BF16ToF32(regression.steps[i]);
    for (uint64_t c = first; c < columns; ++c) {
      const float unit = step * scales[c];
      const float wanted = unit > 0 ? row[c] / factors[i] / unit : 0;
      const float size =
          std::min(std::floor(std::abs(wanted) + static_cast<float>(0.5 - kDeadZone)),
                   static_cast<float>(kMostRegressionWeight));
      const float integer = std::copysign(size, wanted);
      draft.integers[i * columns + c] = static_cast<int8_t>(integer);
      rounded[i * columns + c] = integer * unit;
    }
  }
  regression.constants.assign(columns, 0);
  for (uint64_t c = 0; c < columns; ++c) {
    double constant = draft.column_means[c];
    for (uint64_t i = 0; i < taps; ++i)
      constant -= draft.tap_means[i] * static_cast<double>(rounded[i * columns + c]);
    regression.constants[c] = static_cast<float>(constant);
  }
  CodeWeights(draft.integers, regression);
}

// Rounds all drafts with the same noise, the least with which they fit.
void FitSize(std::vector<Draft>& drafts, uint64_t most_bytes, ThreadPool& pool) {
  const auto count_at = [&](double noise) {
    pool.ParallelFor(drafts.size(), [&](uint64_t i) { Round(noise, drafts[i]); });
    uint64_t bytes = 0;
    for (const Draft& draft : drafts) bytes += draft.regression.bytes();
    return bytes;
  };
  double weights = 0;
  for (const Draft& draft : drafts) weights += static_cast<double>(draft.regression.weights());
  double noise = kFirstNoise, fits = 0;
  for (int round = 0; round < kSizingRounds; ++round) {
    const uint64_t bytes = count_at(noise);
    if (bytes <= most_bytes) fits = noise;
    if (bytes <= most_bytes && (bytes >= most_bytes - most_bytes / 50 || noise <= kLeastNoise))
      return;
    // Four times the noise saves up to a bit a weight; one part in a hundred is left as a margin.
    const double excess =
        8 * (static_cast<double>(bytes) - 0.99 * static_cast<double>(most_bytes)) / weights;
    noise = std::clamp(noise * std::exp2(2 * excess), kLeastNoise, kMostNoise);
  }
  if (fits > 0 && count_at(fits) <= most_bytes) return;
  const uint64_t least = count_at(kMostNoise);
  if (least > most_bytes) {
    throw Error(Finding::kLimit, "regressions of {} tensors take at least {} bytes, {} are allowed",
                drafts.size(), least, most_bytes);
  }
}

// Returns the bits a value by which the regression narrows rows that were held out.
double JudgeDraft(LayerFeatures features, const Draft& draft, std::span<const Snapshot> snapshots,
                  const Cells& cells, uint64_t& held_out) {
  const Regression& regression = draft.regression;
  const uint64_t columns = regression.columns, stride = PaddedToPanel(columns),
                 begin = features.own_begin(regression.is_value);
  const std::vector<float> weights = ScaleWeights(regression, draft.integers, stride);
  std::vector<float> forecast(kFeatureRows * stride);
  std::vector<double> sums(columns), squares(columns), errors(columns);
  uint64_t rows = 0;
  features.ForEachBlock(snapshots, cells, true, [&](const float* block, uint64_t count) {
    for (uint64_t row = 0; row < count; ++row)
      std::ranges::copy(regression.constants, forecast.data() + row * stride);
    PanelAdd(forecast.data(), stride, count, stride,
             {block, 1, static_cast<ptrdiff_t>(features.width()), weights.data(),
              static_cast<ptrdiff_t>(stride), regression.taps()});
    for (uint64_t row = 0; row < count; ++row) {
      for (uint64_t c = 0; c < columns; ++c) {
        const double value = block[row * features.width() + begin + c],
                     error = value - forecast[row * stride + c];
        sums[c] += value;
        squares[c] += value * value;
        errors[c] += error * error;
      }
    }
    rows += count;
  });
  held_out = rows;
  double bits = 0;
  for (uint64_t c = 0; c < columns && rows > 0; ++c) {
    const double spread = squares[c] - sums[c] * sums[c] / static_cast<double>(rows);
    if (spread > 0 && errors[c] > 0) bits += std::log2(spread / errors[c]) / 2;
  }
  return bits / static_cast<double>(columns);
}

// Returns an upper bound of the bytes that the starts of regressions take.
uint64_t CountStartBytes(std::span<const Side> sides) {
  constexpr uint64_t kFields = 64, kTaps = CountFrameTaps(true, 8, 3);
  uint64_t bytes = 0;
  for (const Side& side : sides) bytes += kFields + (4 + kTaps) * side.columns;
  return bytes;
}

// Returns the features of all layers, with as many layers back as the weights' precision allows.
std::vector<LayerFeatures> ChooseFeatures(std::span<const Side> sides, const Rotation& rotation,
                                          uint64_t most_bytes, uint32_t& layers_back) {
  for (layers_back = kMostLayersBack;; --layers_back) {
    std::vector<LayerFeatures> features;
    uint64_t weights = 0;
    for (size_t key = 0; key < sides.size(); key += 2) {
      features.emplace_back(sides, key, layers_back, rotation);
      for (const bool is_value : {false, true})
        weights += features.back().CountTaps(is_value) * features.back().own(is_value).columns;
    }
    const double bits = 8 * static_cast<double>(most_bytes) / static_cast<double>(weights);
    if (layers_back == 1 || bits >= kBitsForMoreLayers) return features;
  }
}

}  // namespace

LearntRegressions LearnRegressions(std::span<const Snapshot> snapshots, uint64_t most_bytes,
                                   ThreadPool& pool) {
  const std::vector<Side> sides = ListCommonSides(snapshots);
  LearntRegressions learnt;
  const Rotation& rotation = learnt.regressions.rotation = MeasureRotation(snapshots, sides);
  Cells cells;
  for (const Snapshot& snapshot : snapshots)
    cells.push_back(std::make_unique<const RowOrders>(snapshot));
  const SampleRows sample(snapshots, cells, sides, kStartRows);
  const uint64_t start_bytes = CountStartBytes(sides);
  // A start needs some rows, and pays only beside weights that take far more.
  const bool starts = sample.positions().size() >= kLeastStartRows && start_bytes < most_bytes / 4;
  if (starts) most_bytes -= start_bytes;
  const size_t layers = sides.size() / 2;
  std::vector<LayerFeatures> features =
      ChooseFeatures(sides, rotation, most_bytes, learnt.layers_back);
  std::vector<Draft> drafts(2 * layers);
  pool.ParallelFor(layers, [&](uint64_t layer) {
    Moments moments(features[layer].CountTaps(true), features[layer].width());
    features[layer].ForEachBlock(snapshots, cells, false,
                                 [&](float* rows, uint64_t count) { moments.Add(rows, count); });
    moments.Finish();
    if (layer == 0) learnt.rows = moments.rows();
    const auto factor = MakeFactor(features[layer], moments);
    for (const bool is_value : {false, true})
      drafts[2 * layer + (is_value ? 1 : 0)] =
          MakeDraft(features[layer], moments, factor, is_value);
  });
  // K of the first layer has no layer before it.
  drafts.erase(drafts.begin());
  FitSize(drafts, most_bytes, pool);
  std::vector<double> saved(drafts.size());
  std::vector<uint64_t> held_out(drafts.size());
  pool.ParallelFor(drafts.size(), [&](uint64_t i) {
    Draft& draft = drafts[i];
    saved[i] = JudgeDraft(features[(i + 1) / 2], draft, snapshots, cells, held_out[i]);
    if (!starts) return;
    const NeighbourChunk own = sample.Read({draft.regression.layer, draft.regression.is_value, 0});
    LearnRegressionStart(learnt.regressions, *own.raw, {own.dtype == DType::kBF16, 0},
                         sample.positions(), sample, draft.regression, draft.integers);
  });
  double weights = 0, bytes = 0;
  for (size_t i = 0; i < drafts.size(); ++i) {
    Regression& regression = drafts[i].regression;
    weights += static_cast<double>(regression.weights());
    bytes += static_cast<double>(regression.bytes());
    std::optional<double>& side = regression.is_value ? learnt.v_saved : learnt.k_saved;
    if (held_out[i] > 0) side = side.value_or(0) + saved[i] / static_cast<double>(layers);
    learnt.regressions.list.push_back(std::move(regression));
  }
  learnt.held_out = held_out[0];
  learnt.bits_per_weight = 8 * bytes / weights;
  return learnt;
}

}  // namespace kv
