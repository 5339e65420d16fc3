// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Learns the transform of a side: covariance and eigenvectors of each part on one set of rows,
// plans judged on another.
#include "lib/study/transform/learn.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/study/dense/gemm.h"
#include "lib/study/transform/eigen.h"
#include "lib/study/transform/steps.h"

namespace kv::transform {
namespace {

constexpr uint64_t kRankUnit = 16;  // groups begin at its multiples
constexpr uint64_t kMostPartFeatures = 8192;
// Rows and features of a tile of a matrix product, which is small enough to stay in cache.
constexpr uint64_t kChunkRows = 512, kTileFeatures = 256;
// Rows sampled to judge plans, and to count tables.
constexpr uint64_t kJudgedRows = 96, kTableRows = 2048;

}  // namespace

Basis::Basis(const TransformSide& side) : side_(side), order_(side.OrderComponents()) {}

std::vector<float> Basis::Project(const CacheRows& rows) const {
  const uint64_t features = side_.features(), count = components();
  std::vector<float> centred = rows.values, by_part(rows.tokens * count), out(rows.tokens * count);
  for (size_t i = 0; i < centred.size(); ++i) {
    const uint64_t feature = i % features;
    centred[i] = side_.Weigh(feature, centred[i] - side_.mean[feature]);
  }
  uint64_t first = 0;
  for (const TransformPart& part : side_.parts) {
    GemmNT(centred.data() + part.first_feature, features, part.vectors.data(), part.features,
           by_part.data() + first, count, rows.tokens, part.rank(), part.features);
    first += part.rank();
  }
  for (uint64_t t = 0; t < rows.tokens; ++t) {
    for (uint64_t c = 0; c < count; ++c) out[t * count + c] = by_part[t * count + order_[c]];
  }
  return out;
}

CacheRows Basis::Restore(std::span<const float> coefficients, uint64_t tokens) const {
  const uint64_t features = side_.features(), count = components();
  std::vector<float> by_part(tokens * count);
  for (uint64_t t = 0; t < tokens; ++t) {
    for (uint64_t c = 0; c < count; ++c)
      by_part[t * count + order_[c]] = coefficients[t * count + c];
  }
  CacheRows rows{std::vector<float>(tokens * features), tokens, features};
  uint64_t first = 0;
  for (const TransformPart& part : side_.parts) {
    GemmNN(by_part.data() + first, count, part.vectors.data(), part.features,
           rows.values.data() + part.first_feature, features, tokens, part.features, part.rank());
    first += part.rank();
  }
  for (size_t i = 0; i < rows.values.size(); ++i) rows.values[i] += side_.mean[i % features];
  return rows;
}

void RequireOrthonormal(const Transform& transform) {
  const float most = transform.is_bfloat ? 1e-2f : 1e-3f;
  for (const TransformSide* side : {&transform.k, &transform.v}) {
    for (const TransformPart& part : side->parts) {
      const uint64_t rank = part.rank();
      std::vector<float> products(rank * rank), weighed = part.vectors;
      for (size_t i = 0; i < weighed.size(); ++i)
        weighed[i] = side->Weigh(part.first_feature + i % part.features, weighed[i]);
      GemmNT(part.vectors.data(), part.features, weighed.data(), part.features, products.data(),
             rank, rank, rank, part.features);
      for (uint64_t i = 0; i < products.size(); ++i) {
        const float wanted = i % (rank + 1) == 0 ? 1 : 0;
        if (std::fabs(products[i] - wanted) <= most) continue;
        throw Error(Finding::kBadField,
                    "the basis of the transform is not orthonormal: components {} and {} have the "
                    "product {}",
                    i / rank, i % rank, products[i]);
      }
    }
  }
}

namespace {

// Returns the root of a feature's weight: errors of values times it weigh equally.
double FactorFor(const TransformSide& side, uint64_t feature) {
  return std::sqrt(static_cast<double>(side.Weight(feature)));
}

// Sums products of the centred features of a part, in double, each times its factor.
std::vector<double> ComputeCovariance(const CacheRows& rows, const TransformSide& side,
                                      const TransformPart& part, ThreadPool& pool) {
  const uint64_t n = part.features;
  std::vector<double> sums(n * n), chunk(n * kChunkRows), products(n * n);
  for (uint64_t begin = 0; begin < rows.tokens; begin += kChunkRows) {
    const uint64_t count = std::min(kChunkRows, rows.tokens - begin);
    for (uint64_t t = 0; t < count; ++t) {
      const uint64_t at = (begin + t) * rows.features + part.first_feature;
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t feature = part.first_feature + i;
        chunk[i * count + t] =
            FactorFor(side, feature) *
            (static_cast<double>(rows.values[at + i]) - static_cast<double>(side.mean[feature]));
      }
    }
    pool.ParallelFor(CeilDiv(n, kTileFeatures), [&](uint64_t tile) {
      const uint64_t first = tile * kTileFeatures, height = std::min(kTileFeatures, n - first);
      double* out = &products[first * n];
      GemmNT(&chunk[first * count], count, chunk.data(), count, out, n, height, n, count);
      for (uint64_t i = 0; i < height * n; ++i) sums[first * n + i] += out[i];
    });
  }
  for (double& sum : sums) sum /= static_cast<double>(rows.tokens);
  return sums;
}

uint64_t RankFor(const CacheRows& rows, uint64_t features, uint64_t asked) {
  const uint64_t most = std::min(features, rows.tokens / 2) / kRankUnit * kRankUnit;
  if (asked > most || asked % kRankUnit != 0 || most == 0) {
    throw Error(
        Finding::kUsage,
        "{} rows of {} features determine at most {} components, in multiples of {}; --rank is {}",
        rows.tokens, features, most, kRankUnit, asked)
        .Hint("learn from more or longer caches");
  }
  return asked == 0 ? most : asked;
}

void LearnPart(const CacheRows& rows, const TransformSide& side, const LearnOptions& options,
               TransformPart& part, ThreadPool& pool) {
  const uint64_t rank = RankFor(rows, part.features, options.rank);
  const Eigen eigen =
      SymmetricEigen(ComputeCovariance(rows, side, part, pool), part.features, pool);
  for (uint64_t c = 0; c < rank; ++c) part.variances.push_back(std::max(0.0, eigen.values[c]));
  for (uint64_t i = 0; i < rank * part.features; ++i) {
    const double factor = FactorFor(side, part.first_feature + i % part.features);
    const auto value = static_cast<float>(eigen.vectors[i] / factor);
    part.vectors.push_back(options.is_bfloat ? BF16ToF32(F32ToBF16(value)) : value);
  }
}

std::vector<float> ComputeMean(const CacheRows& rows) {
  std::vector<double> sums(rows.features);
  for (size_t i = 0; i < rows.values.size(); ++i)
    sums[i % rows.features] += static_cast<double>(rows.values[i]);
  std::vector<float> mean;
  for (const double sum : sums)
    mean.push_back(static_cast<float>(sum / static_cast<double>(rows.tokens)));
  return mean;
}

// Returns at most `most` rows, evenly spaced.
CacheRows Sampled(const CacheRows& rows, uint64_t most) {
  CacheRows out{{}, std::min(rows.tokens, most), rows.features};
  for (uint64_t i = 0; i < out.tokens; ++i) {
    const auto row = rows.values.begin() +
                     static_cast<std::ptrdiff_t>(i * rows.tokens / out.tokens * rows.features);
    out.values.insert(out.values.end(), row, row + static_cast<std::ptrdiff_t>(rows.features));
  }
  return out;
}

// Returns |stored - value| / |row - mean|; the rows have parts outside of the basis.
double RelativeError(const Rows& values, std::span<const float> stored, double centred_energy) {
  double error = centred_energy;
  for (size_t i = 0; i < values.values.size(); ++i) {
    const auto value = static_cast<double>(values.values[i]);
    const double off = value - static_cast<double>(stored[i]);
    error += off * off - value * value;
  }
  return centred_energy > 0 ? std::sqrt(std::max(0.0, error) / centred_energy) : 0;
}

class Planner {
 public:
  Planner(const TransformSide& side, const CacheRows& learn, const CacheRows& held_out)
      : basis_(side), features_(side.features()) {
    const CacheRows judged = Sampled(held_out, kJudgedRows), tables = Sampled(learn, kTableRows);
    judged_ = basis_.Project(judged);
    tables_ = basis_.Project(tables);
    judge_ = {judged_, judged.tokens, basis_.components()};
    learn_ = {tables_, tables.tokens, basis_.components()};
    for (size_t i = 0; i < judged.values.size(); ++i) {
      const uint64_t feature = i % side.features();
      const double off = FactorFor(side, feature) * (static_cast<double>(judged.values[i]) -
                                                     static_cast<double>(side.mean[feature]));
      energy_ += off * off;
    }
  }

  TransformPlan PlanForm(const Form& form, double ratio) const {
    TransformPlan plan{
        std::string(form.name), ratio, FitSchema(form, judge_, Budget(ratio)), {}, 0};
    std::vector<float> stored(judged_.size());
    Faults faults;
    for (uint64_t t = 0; t < judge_.tokens; ++t) {
      StoreRow(form, plan.schema, judge_.Row(t),
               std::span(stored).subspan(t * judge_.components, judge_.components), faults);
    }
    plan.error = RelativeError(judge_, stored, energy_);
    while (!plan.schema.empty() && plan.schema.back().type == CodeType::kNone)
      plan.schema.pop_back();
    return plan;
  }
  TransformPlan PlanSteps(double ratio) const {
    TransformPlan plan{
        std::string(kStepForm), ratio, {}, FitSteps(learn_, judge_, Budget(ratio)), 0};
    std::vector<float> stored(judged_.size());
    Faults faults;
    StoreBlock(plan.steps, judge_, stored, faults);
    plan.error = RelativeError(judge_, stored, energy_);
    return plan;
  }

 private:
  double Budget(double ratio) const { return 16 * static_cast<double>(features_) / ratio; }

  Basis basis_;
  uint64_t features_;
  std::vector<float> judged_, tables_;
  Rows judge_, learn_;
  double energy_ = 0;
};

}  // namespace

TransformSide LearnSide(const CacheRows& learn, const CacheRows& held_out, uint32_t layers,
                        uint32_t heads, uint32_t dim, const LearnOptions& options,
                        ThreadPool& pool) {
  TransformSide side{heads, dim, ComputeMean(learn), options.weights, {}, {}};
  const uint32_t step = options.group_layers == 0 ? layers : options.group_layers;
  for (uint32_t layer = 0; layer < layers; layer += step) {
    const uint32_t count = std::min(step, layers - layer);
    TransformPart part{layer * heads * dim, count * heads * dim, {}, {}};
    if (part.features > kMostPartFeatures) {
      throw Error(Finding::kUnsupportedKind, "a basis of {} features exceeds the limit of {}",
                  part.features, kMostPartFeatures)
          .Hint("--grouping N learns one for each N layers");
    }
    LearnPart(learn, side, options, part, pool);
    side.parts.push_back(std::move(part));
  }
  const Planner planner(side, learn, held_out);
  for (const double ratio : options.ratios) {
    for (const Form* form : options.forms) side.plans.push_back(planner.PlanForm(*form, ratio));
    side.plans.push_back(planner.PlanSteps(ratio));
  }
  return side;
}

}  // namespace kv::transform
