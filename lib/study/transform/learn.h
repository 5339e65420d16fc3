// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Learning a transform from rows of caches.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/transform/transform.h"
#include "lib/study/transform/cache_rows.h"
#include "lib/study/transform/form.h"

namespace kv::transform {

// Projects rows onto the components of K or V: those of all parts, by descending variance.
class Basis {
 public:
  // The side must outlive the object.
  explicit Basis(const TransformSide& side);

  uint64_t components() const { return order_.size(); }
  // Computes coefficients [token][component] of rows minus the mean, and rows from coefficients.
  std::vector<float> Project(const CacheRows& rows) const;
  CacheRows Restore(std::span<const float> coefficients, uint64_t tokens) const;

 private:
  const TransformSide& side_;
  std::vector<uint64_t> order_;  // component: its index among the components of all parts
};

// Throws kBadField if a basis is not orthonormal to 1e-3, or 1e-2 where it is stored in bfloat16,
// in the product of its weights.
void RequireOrthonormal(const Transform& transform);

struct LearnOptions {
  uint64_t rank = 0;          // rank of each part; 0: half of what the rows can support
  uint32_t group_layers = 0;  // layers of a part; 0: all
  bool is_bfloat = false;
  std::vector<double> ratios;
  std::vector<const Form*> forms;  // coding forms: one plan for each form and ratio
  std::vector<float> weights;      // of each feature; empty: all equal
};
// Learns mean, basis and plans of K or V from rows of `layers` layers; the rows in `held_out` only
// judge the plans. Throws kUsage for a rank of more than half of the rows or of less than 16
// components, kUnsupportedKind for parts of more than 8192 features.
TransformSide LearnSide(const CacheRows& learn, const CacheRows& held_out, uint32_t layers,
                        uint32_t heads, uint32_t dim, const LearnOptions& options,
                        ThreadPool& pool);

}  // namespace kv::transform
