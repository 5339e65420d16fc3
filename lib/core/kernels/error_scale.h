// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

// How large the errors of a row are, beside those of its channels. The bytes of archives depend on
// these floats: each is the same on every SIMD target.
namespace kv {

// errors[i] = |values[i] - expected[i]|, or 0 where that is no number or more than 1e30, of which
// sums might overflow.
void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept;

// The mean of errors[i] * weights[i], each taken as 64 where it is more or no number: one outlier
// says nothing of a row. Element i is added on lane i % 16, then the lanes one after another.
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept;

// sums[i] += errors[i] * weight
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept;

namespace ref {
void AbsoluteErrors(const float* values, const float* expected, size_t count,
                    float* errors) noexcept;
float MeanWeighted(const float* errors, const float* weights, size_t count) noexcept;
void AddWeighted(const float* errors, float weight, size_t count, float* sums) noexcept;
}  // namespace ref

}  // namespace kv
