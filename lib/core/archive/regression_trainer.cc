// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include "lib/core/archive/regression_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/reference.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/base/utf8.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/profiled/profile.h"
#include "lib/core/kernels/panel.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

// Rows that are read together, and one block in this many, which is held out.
constexpr uint64_t kBlockRows = 64, kHeldOutOneIn = 16;
// Sums of products are floats for this many rows and then added to doubles.
constexpr uint64_t kFloatRows = 1024;
constexpr uint64_t kSumRows = 48;  // rows of sums that are added together
constexpr double kRidge = 1e-4;    // of each tap's variance
// With fewer bits a weight, one layer back serves better than two: on SmolLM2-135M's layer 12,
// 21 KiB give 8.675 bits a value of K by one and 8.75 by two, 45 KiB 8.57 and 8.516.
constexpr double kBitsForTwoLayers = 2.5;
// Share of the error's variance that rounding all weights of a column adds. The first guess gives
// about 3.4 bits a weight; less than the least would need integers beyond kMostRegressionWeight.
constexpr double kFirstNoise = 0.1, kLeastNoise = 0.02, kMostNoise = 16;
constexpr int kSizingRounds = 6;
// Rounding towards 0 by this much costs little error and makes the integers cheaper to code.
constexpr double kDeadZone = 0.1;

// Positions of tokens, one for each cache.
using Cells = std::vector<std::unique_ptr<const RowOrders>>;

struct Side {
  uint32_t layer = 0;  // the layer's number
  bool is_value = false;
  uint32_t columns = 0;
  uint64_t index = 0;  // of the layer in the snapshot
};

const KvTensor& GetTensor(const Snapshot& snapshot, const Side& side) {
  const LayerKv& layer = snapshot.layers.at(side.index);
  return side.is_value ? *layer.v : layer.k;
}

[[noreturn]] void RefuseLayer(Finding finding, uint32_t layer, const std::string& why) {
  throw Error(finding, why).In(fmt::format("layer {}", layer));
}

// Returns K and V of every layer of a cache, after checking that all have the same tokens.
std::vector<Side> ListSidesAlone(const Snapshot& snapshot) {
  std::vector<Side> sides;
  for (uint64_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    if (!layer.has_k() || !layer.v || layer.k.tokens() == 0) continue;
    for (const bool is_value : {false, true}) {
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      if (!IsHalfFloat(tensor.dtype) || tensor.channels() > BlockRegression::kMaxColumns) {
        RefuseLayer(Finding::kUnsupportedDtype, layer.index,
                    fmt::format("regressions are learnt from f16 and bf16, in rows of at most {} "
                                "values",
                                BlockRegression::kMaxColumns));
      }
      sides.push_back({layer.index, is_value, static_cast<uint32_t>(tensor.channels()), i});
      if (tensor.tokens() != GetTensor(snapshot, sides.front()).tokens()) {
        RefuseLayer(Finding::kInconsistent, layer.index,
                    "regressions are learnt only from layers that all have the same tokens");
      }
    }
  }
  if (sides.empty()) throw Error(Finding::kUnsupportedDtype, "no layer has both K and V");
  std::ranges::stable_sort(sides, {}, &Side::layer);
  for (size_t i = 2; i < sides.size(); i += 2) {
    if (sides[i].layer == sides[i - 2].layer)
      RefuseLayer(Finding::kInconsistent, sides[i].layer, "the cache has this layer twice");
  }
  return sides;
}

// Returns the sides of a cache. Errors name its file.
std::vector<Side> ListSides(const Snapshot& snapshot) {
  try {
    return ListSidesAlone(snapshot);
  } catch (Error& error) {
    throw error.File(snapshot.source.path);
  }
}

// Returns the sides that all caches have.
std::vector<Side> ListCommonSides(std::span<const Snapshot> snapshots) {
  const std::vector<Side> sides = ListSides(snapshots.front());
  for (const Snapshot& snapshot : snapshots.subspan(1)) {
    const auto same = [](const Side& a, const Side& b) {
      return a.layer == b.layer && a.columns == b.columns && a.index == b.index;
    };
    if (!std::ranges::equal(sides, ListSides(snapshot), same)) {
      throw Error(Finding::kInconsistent, "its layers or rows are not those of {}",
                  Printable(snapshots.front().source.path))
          .File(snapshot.source.path)
          .Hint("a profile is of one model: give caches of this model only");
    }
  }
  return sides;
}

// Reads rows of one side as plain floats, K without its rotation.
class SideRows {
 public:
  SideRows(const Side& side, const Rotation& rotation)
      : side_(side), rotator_(rotation, side.columns), x_(side.columns) {}

  // Writes rows [first, first + count), `stride` floats from each to the next.
  void Read(const Snapshot& snapshot, const RowOrders& cells, uint64_t first, uint64_t count,
            float* out, uint64_t stride) {
    const KvTensor& tensor = GetTensor(snapshot, side_);
    const Bytes raw = Gather(tensor, first, count, Order::kTokenHeadDim);
    const bool bfloat = tensor.dtype == DType::kBF16;
    for (uint64_t row = 0; row < count; ++row, out += stride) {
      const std::byte* from = raw.data() + 2 * side_.columns * row;
      for (uint64_t c = 0; c < side_.columns; ++c) {
        const auto half = LoadLE<uint16_t>(from + 2 * c);
        const float value = bfloat ? BF16ToF32(half) : F16ToF32(half);
        x_[c] = std::isfinite(value) ? value : 0;
      }
      if (side_.is_value) {
        std::ranges::copy(x_, out);
      } else {
        rotator_.Rotate(0u - cells.FindPosition(side_.layer, first + row), x_.data(), out);
      }
    }
  }

 private:
  const Side side_;
  Rotator rotator_;
  std::vector<float> x_;
};

// Returns the rotation of K, found in the first cache that shows one.
Rotation MeasureRotation(std::span<const Snapshot> snapshots, std::span<const Side> sides) {
  for (const Snapshot& snapshot : snapshots) {
    std::vector<const LayerKv*> layers;
    for (const Side& side : sides) {
      if (!side.is_value) layers.push_back(&snapshot.layers.at(side.index));
    }
    Rotation rotation = FindKeyRotation(snapshot, layers);
    if (!rotation.angles.empty()) return rotation;
  }
  return {};
}

bool IsHeldOut(uint64_t first) { return first / kBlockRows % kHeldOutOneIn == kHeldOutOneIn - 1; }

// The sides that one layer's regressions concern: taps from layers before, then its own K and V,
// side by side in rows of features.
class LayerFeatures {
 public:
  LayerFeatures(std::span<const Side> sides, size_t key, uint32_t layers_back,
                const Rotation& rotation) {
    std::vector<Side> used;
    for (size_t back = 1; back <= layers_back && 2 * back <= key; ++back) {
      used.push_back(sides[key - 2 * back + 1]);
      used.push_back(sides[key - 2 * back]);
    }
    // All taps of V, which include the layer's K, share what a regression may have.
    const uint64_t share = BlockRegression::kMaxTaps / (used.size() + 1);
    used.insert(used.end(), {sides[key], sides[key + 1]});
    for (const Side& side : used) {
      columns_.push_back(side.columns);
      wanted_.push_back(std::min<uint64_t>(side.columns, share));
      rows_.emplace_back(side, rotation);
    }
    used_ = std::move(used);
  }

  // Returns the neighbours of the layer's K or V, in the order of the features.
  std::vector<Neighbour> ListNeighbours(bool is_value) const {
    std::vector<Neighbour> neighbours;
    for (size_t i = 0; i + (is_value ? 1 : 2) < used_.size(); ++i)
      neighbours.push_back({used_[i].layer, used_[i].is_value, static_cast<uint16_t>(wanted_[i])});
    return neighbours;
  }
  uint64_t CountTaps(bool is_value) const {
    uint64_t taps = 0;
    for (const Neighbour& one : ListNeighbours(is_value)) taps += one.columns;
    return taps;
  }
  const Side& own(bool is_value) const { return used_[used_.size() - (is_value ? 1 : 2)]; }
  // Returns the first feature of the layer's own K or V.
  uint64_t own_begin(bool is_value) const {
    return CountTaps(false) + (is_value ? own(false).columns : 0);
  }
  uint64_t width() const {
    const uint64_t features = own_begin(true) + own(true).columns;
    return PaddedToPanel(features);
  }

  // Calls `take` with blocks of rows of features; those held out, or the others.
  template <typename Take>
  void ForEachBlock(std::span<const Snapshot> snapshots, const Cells& cells, bool held_out,
                    const Take& take) {
    std::vector<float> rows(kBlockRows * width()), wide(kBlockRows * BlockRegression::kMaxColumns);
    for (size_t s = 0; s < snapshots.size(); ++s) {
      const uint64_t tokens = GetTensor(snapshots[s], used_.back()).tokens();
      for (uint64_t first = 0; first < tokens; first += kBlockRows) {
        if (IsHeldOut(first) != held_out) continue;
        const uint64_t count = std::min(kBlockRows, tokens - first);
        uint64_t begin = 0;
        for (size_t i = 0; i < used_.size(); ++i) {
          const uint64_t kept = i + 2 < used_.size() ? wanted_[i] : columns_[i];
          rows_[i].Read(snapshots[s], *cells[s], first, count, wide.data(), columns_[i]);
          for (uint64_t row = 0; row < count; ++row)
            std::copy_n(wide.data() + row * columns_[i], kept, rows.data() + row * width() + begin);
          begin += kept;
        }
        take(rows.data(), count);
      }
    }
  }

 private:
  std::vector<Side> used_;
  std::vector<uint64_t> columns_, wanted_;
  std::vector<SideRows> rows_;
};

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

// One regression while its weights are being rounded.
struct Draft {
  Regression regression;
  std::vector<float> factor;   // upper triangle, [tap][tap]
  std::vector<float> halfway;  // the columns after the lower triangle was solved, [tap][column]
  std::vector<double> error, tap_means, column_means;  // error: variance left by exact weights
  std::vector<int8_t> integers;
};

// Factors the taps' covariances and solves the lower triangle, in doubles.
Draft Solve(const LayerFeatures& features, const Moments& moments, bool is_value) {
  Draft draft;
  Regression& regression = draft.regression;
  const Side& own = features.own(is_value);
  regression.layer = own.layer;
  regression.is_value = is_value;
  regression.columns = own.columns;
  regression.neighbours = features.ListNeighbours(is_value);
  const uint64_t taps = features.CountTaps(is_value), columns = own.columns,
                 begin = features.own_begin(is_value);
  std::vector<double> left(taps * taps), right(taps * columns);
  for (uint64_t i = 0; i < taps; ++i) {
    for (uint64_t j = i; j < taps; ++j) left[i * taps + j] = moments.Covariance(i, j);
    left[i * taps + i] += left[i * taps + i] * kRidge + 1e-12;
    for (uint64_t c = 0; c < columns; ++c)
      right[i * columns + c] = moments.Covariance(i, begin + c);
    draft.tap_means.push_back(moments.Mean(i));
  }
  for (uint64_t c = 0; c < columns; ++c) {
    draft.error.push_back(moments.Variance(begin + c));
    draft.column_means.push_back(moments.Mean(begin + c));
  }
  for (uint64_t i = 0; i < taps; ++i) {
    double* row = left.data() + i * taps;
    double* sides = right.data() + i * columns;
    for (uint64_t k = 0; k < i; ++k) {
      const double* above = left.data() + k * taps;
      const double factor = above[i];
      for (uint64_t j = i; j < taps; ++j) row[j] -= factor * above[j];
      for (uint64_t c = 0; c < columns; ++c) sides[c] -= factor * right[k * columns + c];
    }
    const double root = 1 / std::sqrt(std::max(row[i], 1e-12));
    for (uint64_t j = i; j < taps; ++j) row[j] *= root;
    for (uint64_t c = 0; c < columns; ++c) {
      sides[c] *= root;
      draft.error[c] -= sides[c] * sides[c];
    }
  }
  for (double& error : draft.error) error = std::max(error, 1e-9);
  draft.factor.assign(left.begin(), left.end());
  draft.halfway.assign(right.begin(), right.end());
  for (uint64_t i = 0; i < taps; ++i)
    regression.steps.push_back(ToUpperHalf(1 / draft.factor[i * taps + i]));
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
    const float* factors = draft.factor.data() + i * taps;
    std::copy_n(draft.halfway.data() + i * columns, columns, row.data());
    for (uint64_t j = i + 1; j < taps; ++j) {
      const float factor = factors[j];
      const float* known = rounded.data() + j * columns;
      for (uint64_t c = 0; c < columns; ++c) row[c] -= factor * known[c];
    }
    const float step = BF16ToF32(regression.steps[i]);
    for (uint64_t c = 0; c < columns; ++c) {
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
  std::vector<float> forecast(kBlockRows * stride);
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

}  // namespace

LearntRegressions LearnRegressions(std::span<const Snapshot> snapshots, uint64_t most_bytes,
                                   ThreadPool& pool) {
  const std::vector<Side> sides = ListCommonSides(snapshots);
  LearntRegressions learnt;
  learnt.regressions.rotation = MeasureRotation(snapshots, sides);
  Cells cells;
  for (const Snapshot& snapshot : snapshots)
    cells.push_back(std::make_unique<const RowOrders>(snapshot));
  const size_t layers = sides.size() / 2;
  std::vector<LayerFeatures> features;
  for (learnt.layers_back = 2; features.empty(); --learnt.layers_back) {
    uint64_t weights = 0;
    for (size_t layer = 0; layer < layers; ++layer) {
      features.emplace_back(sides, 2 * layer, learnt.layers_back, learnt.regressions.rotation);
      for (const bool is_value : {false, true})
        weights += features.back().CountTaps(is_value) * features.back().own(is_value).columns;
    }
    const double bits = 8 * static_cast<double>(most_bytes) / static_cast<double>(weights);
    if (learnt.layers_back == 1 || bits >= kBitsForTwoLayers) break;
    features.clear();
  }
  // K of the first layer has no layer before it.
  std::vector<Draft> drafts(2 * layers);
  pool.ParallelFor(layers, [&](uint64_t layer) {
    Moments moments(features[layer].CountTaps(true), features[layer].width());
    features[layer].ForEachBlock(snapshots, cells, false,
                                 [&](float* rows, uint64_t count) { moments.Add(rows, count); });
    moments.Finish();
    if (layer == 0) learnt.rows = moments.rows();
    for (const bool is_value : {false, true})
      drafts[2 * layer + (is_value ? 1 : 0)] = Solve(features[layer], moments, is_value);
  });
  drafts.erase(drafts.begin());
  FitSize(drafts, most_bytes, pool);
  std::vector<double> saved(drafts.size());
  std::vector<uint64_t> held_out(drafts.size());
  pool.ParallelFor(drafts.size(), [&](uint64_t i) {
    saved[i] = JudgeDraft(features[(i + 1) / 2], drafts[i], snapshots, cells, held_out[i]);
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
