// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Statistics of a block's values, and the comparison of two weight files block by block.
#include "lib/engines/infinilm/value_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

bool SameNumber(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

const LinearBlock* FindMlp(const CompressorWeights& weights, uint32_t layer,
                           const std::string& prefix) {
  const auto found = std::find(weights.prefixes.begin(), weights.prefixes.end(), prefix);
  if (found == weights.prefixes.end() || layer >= weights.header.num_layers) return nullptr;
  const auto index = static_cast<uint32_t>(found - weights.prefixes.begin());
  return &weights.Block(layer, index * kSlotsPerMlp);
}

class Differ {
 public:
  Differ(const CompressorWeights& a, const CompressorWeights& b, double atol, double rtol)
      : a_(a), b_(b), atol_(atol), rtol_(rtol) {}

  WeightsDiff Run() {
    CompareHeaders();
    ComparePrefixes();
    const uint32_t layers = std::min(a_.header.num_layers, b_.header.num_layers);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      for (size_t i = 0; i < a_.prefixes.size(); ++i) CompareMlp(layer, i);
    }
    return std::move(diff_);
  }

 private:
  void CompareHeaders() {
    const auto number = [&](std::string_view name, uint32_t a, uint32_t b) {
      if (a != b) diff_.structure.push_back(fmt::format("{}: {} and {}", name, a, b));
    };
    number("num_layers", a_.header.num_layers, b_.header.num_layers);
    number("compression_factor", a_.header.compression_factor, b_.header.compression_factor);
    number("head_dim", a_.header.head_dim, b_.header.head_dim);
    number("min_seq_len", a_.header.min_seq_len, b_.header.min_seq_len);
    if (a_.header.num_heads != b_.header.num_heads) {
      diff_.notes.push_back(fmt::format("num_heads, which no loader reads: {} and {}",
                                        a_.header.num_heads, b_.header.num_heads));
    }
    if (a_.dtype != b_.dtype) {
      diff_.notes.push_back(fmt::format("dtype: {} and {}", Name(a_.dtype), Name(b_.dtype)));
    }
    if (a_.slots != b_.slots) {
      diff_.notes.push_back(
          fmt::format("slots: {} and {}", fmt::join(a_.slots, ","), fmt::join(b_.slots, ",")));
    }
    if (a_.metadata != b_.metadata) diff_.notes.emplace_back("metadata differs");
  }

  void ComparePrefixes() {
    const auto missing = [&](const CompressorWeights& from, const CompressorWeights& in,
                             std::string_view which) {
      for (const std::string& prefix : from.prefixes) {
        const auto& others = in.prefixes;
        if (std::find(others.begin(), others.end(), prefix) != others.end()) continue;
        diff_.structure.push_back(fmt::format("{}: only in {}", prefix, which));
      }
    };
    missing(a_, b_, "A");
    missing(b_, a_, "B");
    std::vector<std::string> a = a_.prefixes, b = b_.prefixes;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    if (a == b && a_.prefixes != b_.prefixes) {
      diff_.structure.push_back(fmt::format("order of MLPs: {} and {}", fmt::join(a_.prefixes, ","),
                                            fmt::join(b_.prefixes, ",")));
    }
  }

  void CompareMlp(uint32_t layer, size_t prefix) {
    const LinearBlock* a = FindMlp(a_, layer, a_.prefixes[prefix]);
    const LinearBlock* b = FindMlp(b_, layer, a_.prefixes[prefix]);
    if (a == nullptr || b == nullptr) return;
    for (uint32_t slot = 0; slot < kSlotsPerMlp; ++slot) {
      const auto index = static_cast<uint32_t>(prefix) * kSlotsPerMlp + slot;
      diff_.blocks.push_back(CompareBlock(a_.BlockName(layer, index), a[slot], b[slot]));
    }
  }

  BlockDiff CompareBlock(std::string name, const LinearBlock& a, const LinearBlock& b) const {
    BlockDiff diff{std::move(name), "", std::nullopt, std::nullopt};
    if (a.rows() != b.rows() || a.cols() != b.cols()) {
      diff.problem = fmt::format("{} x {} and {} x {}", a.rows(), a.cols(), b.rows(), b.cols());
      return diff;
    }
    diff.weight = DiffValues(a.weight, b.weight, atol_, rtol_);
    if (a.has_bias() != b.has_bias()) {
      diff.problem = fmt::format("bias only in {}", a.has_bias() ? "A" : "B");
    } else if (a.has_bias()) {
      diff.bias = DiffValues(a.bias, b.bias, atol_, rtol_);
    }
    return diff;
  }

  const CompressorWeights& a_;
  const CompressorWeights& b_;
  double atol_, rtol_;
  WeightsDiff diff_;
};

}  // namespace

std::vector<double> ToDoubles(const TensorView& view) {
  std::vector<double> values(view.elements());
  if (view.dtype == DType::kF64) {
    const Bytes bytes = CopyContiguous(view);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  const Bytes bytes = RoundValues(view, DType::kF32);
  for (size_t i = 0; i < values.size(); ++i) values[i] = LoadLE<float>(bytes.data() + 4 * i);
  return values;
}

ValueStats StatsOfValues(const TensorView& view) {
  Moments moments;
  for (const double value : ToDoubles(view)) moments.Add(value);
  ValueStats stats{moments.Finish()};
  RoundingCounts f16, bf16;
  RoundValues(view, DType::kF16, &f16);
  RoundValues(view, DType::kBF16, &bf16);
  stats.f16_overflows = f16.overflowed;
  stats.f16_flushes = f16.flushed;
  stats.bf16_overflows = bf16.overflowed;
  return stats;
}

bool LooksUntrained(const ValueStats& weight, uint64_t in_features) {
  constexpr uint64_t kEnough = 64;  // fewer values prove nothing
  if (weight.values < kEnough || weight.nan_count + weight.infinite_count > 0) return false;
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  // Rounding to bf16 may move the largest value outwards by half a percent.
  const bool inside = std::max(-weight.min, weight.max) <= bound * 1.005;
  const double uniform = bound / std::sqrt(3.0);
  const double slack = 3 / std::sqrt(static_cast<double>(weight.values));
  return inside && std::abs(weight.standard_deviation / uniform - 1) < 0.02 + slack;
}

ValueDiff DiffValues(const TensorView& a, const TensorView& b, double atol, double rtol) {
  const std::vector<double> left = ToDoubles(a), right = ToDoubles(b);
  KV_ASSERT(left.size() == right.size());
  ValueDiff diff;
  diff.values = left.size();
  double sum = 0, dot = 0, left_norm = 0, right_norm = 0;
  uint64_t finite = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double x = left[i], y = right[i];
    const bool same = SameNumber(x, y);
    const bool comparable = std::isfinite(x) && std::isfinite(y);
    const double distance = comparable ? std::abs(x - y) : 0;
    diff.different += !same;
    if (!same && (!comparable || distance > atol + rtol * std::abs(y))) {
      if (diff.beyond++ == 0) diff.first_beyond = i;
    }
    if (!comparable) continue;
    ++finite;
    sum += distance;
    diff.max_abs = std::max(diff.max_abs, distance);
    if (y != 0) diff.max_rel = std::max(diff.max_rel, distance / std::abs(y));
    dot += x * y;
    left_norm += x * x;
    right_norm += y * y;
  }
  if (finite > 0) diff.mean_abs = sum / static_cast<double>(finite);
  if (left_norm > 0 && right_norm > 0) {
    diff.cosine = std::min(1.0, dot / std::sqrt(left_norm) / std::sqrt(right_norm));
  } else if (left_norm != right_norm) {
    diff.cosine = 0;
  }
  if (diff.different == 0) diff.cosine = 1;
  return diff;
}

bool WeightsDiff::equal() const {
  const auto within = [](const std::optional<ValueDiff>& diff) {
    return !diff || diff->beyond == 0;
  };
  return structure.empty() &&
         std::all_of(blocks.begin(), blocks.end(), [&](const BlockDiff& block) {
           return block.problem.empty() && within(block.weight) && within(block.bias);
         });
}

WeightsDiff DiffWeights(const CompressorWeights& a, const CompressorWeights& b, double atol,
                        double rtol) {
  return Differ(a, b, atol, rtol).Run();
}

}  // namespace kv
