// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/predicted_kl.h"

#include <cmath>
#include <limits>

namespace kv::eviction {
namespace {

// The mean of figures of rows, and what is needed for its error.
struct RowMeans {
  std::vector<double> values;  // of the rows that have one
  double within = 0;           // sum over these rows of the variance among a row's samples

  double Mean() const {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  }
  // Of two stages: rows drawn without replacement from `population`, then samples within a row.
  double StandardError(uint64_t population, uint64_t samples) const {
    const auto n = static_cast<double>(values.size()), all = static_cast<double>(population);
    const double share = n < all ? n / all : 1;
    double between = 0;
    if (values.size() > 1) {
      const double mean = Mean();
      for (const double value : values) between += (value - mean) * (value - mean);
      between /= n - 1;
    } else if (share < 1 || samples == 1) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    // One sample a row says nothing of its spread: all spread counts as if it came from sampling.
    if (samples == 1) return std::sqrt(between / n);
    const double inside = samples == 0 ? 0 : within / n / static_cast<double>(samples);
    return std::sqrt(((1 - share) * between + share * inside) / n);
  }
};

std::optional<PredictedKl> Predicted(KlMethod method, const RowMeans& rows, uint64_t population,
                                     uint64_t samples) {
  if (rows.values.empty()) return std::nullopt;
  return PredictedKl{method,
                     rows.Mean(),
                     rows.StandardError(population, samples),
                     rows.values.size(),
                     population,
                     samples,
                     Cause::kEviction};
}

}  // namespace

std::string_view Name(KlMethod method) {
  return method == KlMethod::kGradients ? "gradients" : "sensitivity";
}

const Calibration& CalibrationOf(KlMethod method, Cause cause) {
  if (cause == Cause::kQuantisation) {
    return method == KlMethod::kGradients ? kQuantGradientCalibration
                                          : kQuantSensitivityCalibration;
  }
  return method == KlMethod::kGradients ? kGradientCalibration : kSensitivityCalibration;
}

std::optional<PredictedKl> PredictKl(const LogPChange& change, uint64_t population) {
  RowMeans rows;
  std::vector<double> of_row(change.samples);
  for (uint64_t row = 0; row < change.rows; ++row) {
    double sum = 0;
    for (uint64_t sample = 0; sample < change.samples; ++sample) {
      const double d = change.at(sample, row);
      of_row[sample] = d * d / 2;
      sum += of_row[sample];
    }
    const double mean = sum / static_cast<double>(change.samples);
    if (!std::isfinite(mean)) continue;
    rows.values.push_back(mean);
    double squares = 0;
    for (const double value : of_row) squares += (value - mean) * (value - mean);
    if (change.samples > 1) rows.within += squares / static_cast<double>(change.samples - 1);
  }
  return Predicted(KlMethod::kGradients, rows, population, change.samples);
}

std::optional<PredictedKl> PredictKl(std::span<const LayerQuality> layers,
                                     const LayerWeights& weights, uint64_t population) {
  if (layers.empty()) return std::nullopt;
  RowMeans rows;
  const size_t measured = layers.front().step_output_cosine.size();
  for (size_t row = 0; row < measured; ++row) {
    double sum = 0;
    for (const LayerQuality& layer : layers) {
      const auto weight = weights.find(layer.layer);
      if (weight == weights.end()) continue;
      // |o - o'|^2 / |o|^2 is 2 (1 - cos) for outputs of equal norm.
      sum += weight->second * 2 * (1 - layer.step_output_cosine[row]);
    }
    if (std::isfinite(sum)) rows.values.push_back(sum);
  }
  return Predicted(KlMethod::kSensitivity, rows, population, 0);
}

}  // namespace kv::eviction
